// Command genproto compiles proto/ and runs the two Go generators, without
// protoc: `go run ./internal/genproto`. Its output is committed.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/pluginpb"
)

const module = "github.com/berm-dev/berm"

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "genproto:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	files, err := protoFiles("proto")
	if err != nil {
		return err
	}
	compiler := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{"proto"}}),
		// Comments of the .proto files become comments of the Go types.
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := compiler.Compile(ctx, files...)
	if err != nil {
		return fmt.Errorf("compile: %w", err)
	}
	request := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: files,
		Parameter:      proto.String("module=" + module),
	}
	seen := map[string]bool{}
	for _, f := range compiled {
		imports := f.Imports()
		for i := range imports.Len() {
			if dep := imports.Get(i); !seen[dep.Path()] {
				seen[dep.Path()] = true
				request.ProtoFile = append(request.ProtoFile, protoutil.ProtoFromFileDescriptor(dep.FileDescriptor))
			}
		}
	}
	for _, f := range compiled {
		if !seen[f.Path()] {
			seen[f.Path()] = true
			request.ProtoFile = append(request.ProtoFile, protoutil.ProtoFromFileDescriptor(f))
		}
	}
	for _, plugin := range []string{"protoc-gen-go", "protoc-gen-connect-go"} {
		if err := generate(ctx, plugin, request); err != nil {
			return err
		}
	}
	return nil
}

// protoFiles lists the .proto files below root, relative to it and sorted, so
// that the output does not depend on the file system.
func protoFiles(root string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, ".proto") {
			rel, relErr := filepath.Rel(root, path)
			if relErr != nil {
				return relErr
			}
			files = append(files, filepath.ToSlash(rel))
		}
		return err
	})
	sort.Strings(files)
	return files, err
}

func generate(ctx context.Context, plugin string, request *pluginpb.CodeGeneratorRequest) error {
	in, err := proto.Marshal(request)
	if err != nil {
		return fmt.Errorf("encode the request for %s: %w", plugin, err)
	}
	cmd := exec.CommandContext(ctx, "go", "tool", plugin)
	cmd.Stdin = bytes.NewReader(in)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", plugin, err)
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(out, &response); err != nil {
		return fmt.Errorf("decode %s's answer: %w", plugin, err)
	}
	if response.Error != nil {
		return fmt.Errorf("%s: %s", plugin, response.GetError())
	}
	for _, f := range response.File {
		if err := os.MkdirAll(filepath.Dir(f.GetName()), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(f.GetName(), []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
