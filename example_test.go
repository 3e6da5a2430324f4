package berm_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/backend/process"
	"github.com/berm-dev/berm/errdefs"
)

// A repository is cloned with a token that never enters the sandbox. Then every
// process of that stage ends, the gate closes, and what was cloned runs without
// any way out.
func ExampleSandbox_SetEgress() {
	ctx := context.Background()
	provider, err := berm.Open(ctx, process.Config{}, berm.Config{
		Require: berm.Isolation{Filesystem: true, Network: true, Processes: true},
		Egress: &berm.Egress{Credentials: []berm.Credential{{
			Host: "git.example.com", Prefix: "Bearer ", Paths: []string{"/team/tools.git"},
			Source: func(context.Context) (string, error) { return os.Getenv("GIT_TOKEN"), nil },
		}}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer provider.Close()
	sandbox, err := provider.Create(ctx, berm.CreateOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sandbox.Close()

	clone, err := sandbox.Start(ctx, berm.Command{Args: []string{"git", "clone", "https://git.example.com/team/tools.git"}})
	if err == nil {
		_, err = clone.Wait(ctx)
	}
	if err == nil {
		// What it left running ends too.
		err = clone.Kill(ctx)
	}
	if err == nil || errors.Is(err, errdefs.NotFound) {
		err = sandbox.SetEgress(ctx, nil)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	out, err := sandbox.CommandContext(ctx, "make", "-C", "tools", "test").CombinedOutput()
	fmt.Printf("%s%v\n", out, err)
}
