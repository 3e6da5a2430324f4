package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

const (
	// maxYAMLTokens bounds the parser's work, which grows with the square of the
	// number of keys.
	maxYAMLTokens = 1 << 15
	// maxYAMLColumn bounds block nesting before the recursive parser sees it: each
	// level needs a column of its own.
	maxYAMLColumn = 256
)

// jsonNumber is what a number looks like in JSON. YAML has more spellings
// (0x1f, 010, .5, +1), and readers do not agree on what they mean.
var jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)

// decodeYAML reads one YAML document into the same tree as decodeJSON.
func decodeYAML(data []byte) (value any, err error) {
	// The parser is written by others and reads bytes that a stranger may have
	// written: a panic in it is a refusal, not the end of the program.
	defer func() {
		if fault := recover(); fault != nil {
			value, err = nil, fmt.Errorf("not readable as YAML: %v", fault)
		}
	}()
	tokens := lexer.Tokenize(string(data))
	if err := checkTokens(tokens); err != nil {
		return nil, err
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		return nil, yamlFault(err)
	}
	var body ast.Node
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if body != nil {
			return nil, errors.New("the file has more than one YAML document")
		}
		body = doc.Body
	}
	if body == nil {
		return nil, errors.New("the file is empty")
	}
	return yamlValue(body, "", 0)
}

// checkTokens bounds size and nesting, because the parser recurses.
func checkTokens(tokens token.Tokens) error {
	if len(tokens) > maxYAMLTokens {
		return fmt.Errorf("the file has more than %d YAML tokens", maxYAMLTokens)
	}
	flow := 0
	for _, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			if flow++; flow > maxDepth {
				return errDepth
			}
		case token.SequenceEndType, token.MappingEndType:
			flow = max(0, flow-1)
		case token.AnchorType, token.AliasType, token.MergeKeyType:
			return fmt.Errorf("line %d: anchors, aliases and merge keys are not accepted", t.Position.Line)
		case token.TagType, token.DirectiveType:
			return fmt.Errorf("line %d: tags and directives are not accepted", t.Position.Line)
		case token.SequenceEntryType, token.MappingKeyType, token.MappingValueType:
			key := t
			if t.Type == token.MappingValueType && t.Prev != nil {
				key = t.Prev
			}
			if flow == 0 && key.Position.Column > maxYAMLColumn {
				return errDepth
			}
		}
	}
	return nil
}

// yamlFault takes the first line of the parser's message: the rest quotes the
// file, which may hold secrets.
func yamlFault(err error) error {
	var syntax *yaml.SyntaxError
	if errors.As(err, &syntax) && syntax.Token != nil {
		return fmt.Errorf("line %d: %s", syntax.Token.Position.Line, firstLine(syntax.Message))
	}
	return errors.New(firstLine(err.Error()))
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

func yamlValue(node ast.Node, path string, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errDepth
	}
	switch n := node.(type) {
	case *ast.MappingNode:
		return yamlObject(n.Values, path, depth+1)
	case *ast.MappingValueNode:
		return yamlObject([]*ast.MappingValueNode{n}, path, depth+1)
	case *ast.SequenceNode:
		return yamlList(n.Values, path, depth+1)
	case *ast.StringNode:
		return n.Value, nil
	case *ast.LiteralNode:
		return n.Value.Value, nil
	case *ast.BoolNode:
		return n.Value, nil
	case *ast.NullNode:
		return nil, nil
	case *ast.IntegerNode, *ast.FloatNode:
		text := node.GetToken().Value
		if !jsonNumber.MatchString(text) {
			return nil, fmt.Errorf("%s: the number %s has to be written as in JSON, or quoted if it is text", place(path), printable(text))
		}
		return json.Number(text), nil
	}
	return nil, fmt.Errorf("%s: a YAML %s is not accepted", place(path), strings.ToLower(node.Type().String()))
}

func yamlObject(values []*ast.MappingValueNode, path string, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errDepth
	}
	object := map[string]any{}
	for _, entry := range values {
		name, ok := entry.Key.(*ast.StringNode)
		if !ok {
			return nil, fmt.Errorf("%s: the key %s is not a string; quote it", place(path), printable(firstLine(entry.Key.String())))
		}
		key := name.Value
		if _, twice := object[key]; twice {
			return nil, fmt.Errorf("%s: given more than once", join(path, key))
		}
		value, err := yamlValue(entry.Value, join(path, key), depth)
		if err != nil {
			return nil, err
		}
		object[key] = value
	}
	return object, nil
}

func yamlList(values []ast.Node, path string, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errDepth
	}
	list := []any{}
	for i, entry := range values {
		value, err := yamlValue(entry, index(path, i), depth)
		if err != nil {
			return nil, err
		}
		list = append(list, value)
	}
	return list, nil
}

// place names the top of the file, which has no path.
func place(path string) string {
	if path == "" {
		return "the file"
	}
	return path
}
