package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Bounds on a file. A configuration that a person wrote is far below them.
const (
	// maxBytes bounds the file.
	maxBytes = 1 << 20
	// maxDepth bounds how deep objects and lists may be nested.
	maxDepth = 32
)

// errDepth is the refusal of deep nesting, the same in both languages.
var errDepth = fmt.Errorf("objects and lists are nested more than %d deep", maxDepth)

// decodeJSON reads one JSON value into map[string]any, []any, string,
// json.Number, bool or nil. encoding/json alone would take the last of two equal
// keys without a word, so the tokens are put together here.
func decodeJSON(data []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	value, err := jsonValue(decoder, "", 0)
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, errors.New("the file ends in the middle")
		}
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("something follows the object, at byte %d", decoder.InputOffset())
	}
	return value, nil
}

func jsonValue(decoder *json.Decoder, path string, depth int) (any, error) {
	token, err := decoder.Token()
	if err != nil {
		return nil, fmt.Errorf("at byte %d: %w", decoder.InputOffset(), err)
	}
	delim, ok := token.(json.Delim)
	if !ok {
		return token, nil
	}
	if depth >= maxDepth {
		return nil, errDepth
	}
	if delim == '[' {
		return jsonList(decoder, path, depth+1)
	}
	return jsonObject(decoder, path, depth+1)
}

func jsonObject(decoder *json.Decoder, path string, depth int) (any, error) {
	object := map[string]any{}
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return nil, fmt.Errorf("at byte %d: %w", decoder.InputOffset(), err)
		}
		key, ok := token.(string)
		if !ok {
			return nil, fmt.Errorf("at byte %d: a key is not a string", decoder.InputOffset())
		}
		if _, twice := object[key]; twice {
			return nil, fmt.Errorf("%s: given more than once", join(path, key))
		}
		if object[key], err = jsonValue(decoder, join(path, key), depth); err != nil {
			return nil, err
		}
	}
	_, err := decoder.Token()
	return object, err
}

func jsonList(decoder *json.Decoder, path string, depth int) (any, error) {
	list := []any{}
	for decoder.More() {
		value, err := jsonValue(decoder, index(path, len(list)), depth)
		if err != nil {
			return nil, err
		}
		list = append(list, value)
	}
	_, err := decoder.Token()
	return list, err
}

// join and index build the name of a place in the file: layout.skills[0].id.
func join(path, key string) string {
	if path == "" {
		return printable(key)
	}
	return path + "." + printable(key)
}

func index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

// printable keeps a key from the file short and free of control characters, so
// that a reason stays one line.
func printable(key string) string {
	const longest = 80
	if len(key) > longest {
		key = key[:longest] + "..."
	}
	quoted := fmt.Sprintf("%q", key)
	if plain := quoted[1 : len(quoted)-1]; plain == key && key != "" {
		return plain
	}
	return quoted
}
