package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berm-dev/berm/config"
	"github.com/berm-dev/berm/errdefs"
)

// unknownFlagError is a flag that does not exist.
type unknownFlagError struct {
	name   string
	reason string
	// value: the flag was probably meant to take one.
	value bool
}

func (e *unknownFlagError) Error() string { return e.reason }

// remove takes the flag out of args, and its value when it has one.
func (e *unknownFlagError) remove(args []string) ([]string, bool) {
	for i, arg := range args {
		switch {
		case arg == "--":
			return nil, false
		case arg == "--"+e.name && e.value && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-"):
			return slices.Concat(args[:i], args[i+2:]), true
		case arg == "--"+e.name || strings.HasPrefix(arg, "--"+e.name+"="):
			return slices.Concat(args[:i], args[i+1:]), true
		}
	}
	return nil, false
}

// flagFault turns an error of the flag parser into one of ours.
func flagFault(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		if errors.Is(err, pflag.ErrHelp) {
			return err
		}
		return errdefs.New(errdefs.Invalid, "", err.Error())
	}
	var names []string
	add := func(f *pflag.Flag) { names = append(names, f.Name) }
	cmd.Flags().VisitAll(add)
	cmd.InheritedFlags().VisitAll(add)
	fault := &unknownFlagError{name: unknown.GetSpecifiedName(), reason: err.Error()}
	if unknown.GetSpecifiedShortnames() != "" {
		return fault
	}
	if best := config.Nearest(fault.name, names); best != "" {
		fault.reason += "; did you mean --" + best + "?"
		meant := cmd.Flags().Lookup(best)
		fault.value = meant != nil && meant.NoOptDefVal == ""
	}
	return fault
}

// noSuchCommand refuses a word that is no subcommand.
func (a *app) noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, sub := range cmd.Commands() {
		names = append(names, sub.Name())
	}
	return errdefs.New(errdefs.Invalid, "", fmt.Sprintf("unknown command %q for %q%s", args[0], cmd.CommandPath(), hint(args[0], names)))
}

// hint is the nearest candidate as a question, or all of them.
func hint(name string, candidates []string) string {
	if best := config.Nearest(name, candidates); best != "" {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	return "; known: " + strings.Join(candidates, ", ")
}

// reportFailure tells a failure: on the standard output as one JSON object, or
// in words on the standard error.
func (a *app) reportFailure(err error, asJSON bool) {
	if asJSON {
		// The failure is told by the exit status as well.
		_ = a.printJSON(struct {
			Error errdefs.Encoded `json:"error"`
		}{errdefs.Encode(err)})
		return
	}
	a.tell(err)
}

// tell writes an error in words, each of its reasons on a line of its own.
func (a *app) tell(err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // straight from errors.Join
		for _, one := range joined.Unwrap() {
			a.tell(one)
		}
		return
	}
	var known *errdefs.Error
	if !errors.As(err, &known) || len(known.Reasons) < 2 {
		a.say("%v", err)
		return
	}
	head := known.Op
	if known.Backend != "" {
		head += " (" + known.Backend + ")"
	}
	if head != "" {
		head += ": "
	}
	a.say("%s%d reasons", head, len(known.Reasons))
	for _, reason := range known.Reasons {
		fmt.Fprintln(a.stderr, "  - "+printable(reason))
	}
	if known.Err != nil {
		fmt.Fprintln(a.stderr, "  "+printable(known.Err.Error()))
	}
}

// say writes one line of berm's own to the standard error.
func (a *app) say(format string, args ...any) {
	fmt.Fprintln(a.stderr, "berm: "+printable(fmt.Sprintf(format, args...)))
}

// printJSON writes one object to the standard output. Its error has been told on
// the standard error.
func (a *app) printJSON(value any) error {
	encoder := json.NewEncoder(a.stdout)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	if err != nil {
		a.say("write the result: %v", err)
	}
	return err
}

// printable escapes control characters: text that came from inside must not
// drive the reader's terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}
