package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/config"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/errdefs"
)

// statusDenied is the exit status of an explanation that ends in a denial.
const statusDenied status = 1

func (a *app) policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Look into what a configuration file lets sandboxes reach",
		Args:  a.noSuchCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.policyCheckCommand(), a.policyExplainCommand())
	return cmd
}

func (a *app) policyCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Print the egress policy of a configuration file, or every fault in it",
		Long: `Print the egress policy of a configuration file as one JSON object, or every fault
in it. Credentials are named, and never printed; one whose variable or file cannot
be read now is under "missing". A resolver is not asked.

Exit status: 0 when the file is right, else 125.`,
		Example:           "  berm policy check berm.yaml",
		ValidArgsFunction: configFiles,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errdefs.New(errdefs.Invalid, "", "give one file: berm policy check FILE")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.policyCheck(cmd.Context(), args[0]) },
	}
}

// configFiles completes names of configuration files.
func configFiles(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"json", "yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
}

// policyMeaning is what `policy check` prints.
type policyMeaning struct {
	Network        string           `json:"network"`
	AllowAny       bool             `json:"allowAny"`
	Allow          []string         `json:"allow"`
	AllowInwardFor []string         `json:"allowInwardFor"`
	Resolver       bool             `json:"resolver"`
	Credentials    []credentialLine `json:"credentials"`
	Missing        []string         `json:"missing"`
}

// credentialLine is a credential without its secret.
type credentialLine struct {
	ID          string   `json:"id,omitempty"`
	Host        string   `json:"host"`
	Methods     []string `json:"methods,omitempty"`
	Paths       []string `json:"paths,omitempty"`
	Header      string   `json:"header,omitempty"`
	Prefix      string   `json:"prefix,omitempty"`
	Placeholder string   `json:"placeholder,omitempty"`
}

func (a *app) policyCheck(ctx context.Context, path string) error {
	file, err := config.Load(path, a.factories)
	if err != nil {
		return err
	}
	caps := file.Backend.Declare()
	out := policyMeaning{
		Network: string(network(file.Config.Network, caps)),
		Allow:   []string{}, AllowInwardFor: []string{}, Credentials: []credentialLine{}, Missing: []string{},
	}
	if !slices.Contains(caps.Networks, driver.Network(out.Network)) {
		return errdefs.New(errdefs.Unsupported, "check "+path, fmt.Sprintf("backend %s has no network %q", file.BackendName, out.Network))
	}
	if policy := file.Config.Egress; policy != nil {
		out.AllowAny, out.Resolver = policy.AllowAny, policy.Resolver != nil
		out.Allow = append(out.Allow, policy.Allow...)
		out.AllowInwardFor = append(out.AllowInwardFor, policy.AllowInwardFor...)
		for _, c := range policy.Credentials {
			out.Credentials = append(out.Credentials, credentialLine{
				ID: c.ID, Host: c.Host, Methods: c.Methods, Paths: c.Paths, Header: c.Header, Prefix: c.Prefix, Placeholder: c.Placeholder,
			})
		}
		out.Missing = append(out.Missing, config.MissingSecrets(ctx, policy)...)
	}
	return a.printIndented(out)
}

// printIndented prints one object for people and programs.
func (a *app) printIndented(v any) error {
	encoder := json.NewEncoder(a.stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// explainFlags are those of `policy explain`.
type explainFlags struct {
	config string
	json   bool
}

func (a *app) policyExplainCommand() *cobra.Command {
	f := &explainFlags{}
	cmd := &cobra.Command{
		Use:   "explain -c FILE HOST[:PORT]",
		Short: "Say whether a sandbox could reach a host, and which rule says so",
		Long: `Say whether a sandbox of a configuration file could reach a host, at port 443 when
none is given, and go through every rule. The gate's own code decides; nothing is
resolved and nothing is dialled, so a name that is allowed here can still be denied
for the address that it leads to. A resolver of the file is asked where its rules
could make a difference.

Exit status: 0 for what is allowed, 1 for what is denied, 125 for a failure.`,
		Example: `  berm policy explain -c berm.yaml api.example.com
  berm policy explain -c berm.yaml --json db.example.com:5432`,
		ValidArgsFunction: cobra.NoFileCompletions,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errdefs.New(errdefs.Invalid, "", "give one host: berm policy explain -c FILE HOST[:PORT]")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.policyExplain(cmd.Context(), f, args[0]) },
	}
	cmd.Flags().StringVarP(&f.config, "config", "c", "", "the configuration `FILE` (JSON or YAML)")
	cmd.Flags().BoolVar(&f.json, "json", false, "print one JSON object")
	_ = cmd.MarkFlagFilename("config", "json", "yaml", "yml")
	return cmd
}

// explained is an explanation on its way out.
type explained struct {
	Allow  bool          `json:"allow"`
	Reason egress.Reason `json:"reason"`
	Rule   string        `json:"rule,omitempty"`
	Host   string        `json:"host,omitempty"`
	Port   uint16        `json:"port,omitempty"`
	Steps  []explainStep `json:"steps"`
	Hint   string        `json:"hint,omitempty"`
}

type explainStep struct {
	Rule    string `json:"rule"`
	Matched bool   `json:"matched"`
	Why     string `json:"why"`
}

func (a *app) policyExplain(ctx context.Context, f *explainFlags, target string) error {
	if f.config == "" {
		return errdefs.New(errdefs.Invalid, "", "give the configuration file: berm policy explain -c FILE HOST[:PORT]")
	}
	file, err := config.Load(f.config, a.factories)
	if err != nil {
		return err
	}
	policy := file.Config.Egress
	if policy == nil {
		n := network(file.Config.Network, file.Backend.Declare())
		return errdefs.New(errdefs.Unsupported, "explain "+f.config, fmt.Sprintf("network %s has no gate that would decide", n))
	}
	query := egress.Query{Protocol: egress.Connect, Port: 443}
	if host, port, err := egress.SplitAuthority(target); err != nil {
		query.Host, query.Port = target, 0 // Decide says what is wrong with it
	} else if query.Host = host; port != 0 {
		query.Port = port
	}
	found, err := explainPolicy(ctx, policy, query)
	if err != nil {
		return err
	}
	out := explained{Allow: found.Verdict.Allow, Reason: found.Verdict.Reason, Rule: found.Verdict.Rule, Host: found.Verdict.Host, Port: found.Verdict.Port, Steps: []explainStep{}, Hint: found.Hint}
	for _, step := range found.Steps {
		out.Steps = append(out.Steps, explainStep(step))
	}
	if f.json {
		err = a.printIndented(out)
	} else {
		err = out.print(a)
	}
	if err == nil && !out.Allow {
		return statusDenied
	}
	return err
}

// explainPolicy decides as the gate does, with the resolver's rules where the policy's
// own do not allow.
func explainPolicy(ctx context.Context, policy *berm.Egress, query egress.Query) (egress.Explanation, error) {
	rules, err := egress.Compile(policy, 1)
	if err != nil {
		return egress.Explanation{}, err
	}
	found := rules.Explain(query)
	if !rules.AskResolver(found.Verdict) {
		return found, nil
	}
	ctx, cancel := context.WithTimeout(ctx, egress.ResolverTimeout)
	defer cancel()
	extra, err := rules.Resolver()(ctx)
	if err != nil {
		return found, errdefs.Wrap(errdefs.Unavailable, "ask the resolver", err)
	}
	more, err := rules.With(extra)
	if err != nil {
		return found, errdefs.Wrap(errdefs.Unavailable, "use the resolver's rules", errors.New(strings.Join(reasons(err), "; ")))
	}
	return more.Explain(query), nil
}

// print is for people.
func (e explained) print(a *app) error {
	word := "denied"
	if e.Allow {
		word = "allowed"
	}
	text := fmt.Sprintf("%s: %s", word, e.Reason)
	if e.Rule != "" {
		text += fmt.Sprintf(" (%s)", printable(e.Rule))
	}
	if e.Host != "" {
		text += fmt.Sprintf(" for %s port %d", printable(e.Host), e.Port)
	}
	for _, step := range e.Steps {
		mark := "-"
		if step.Matched {
			mark = "+"
		}
		text += fmt.Sprintf("\n  %s %s: %s", mark, printable(step.Rule), step.Why)
	}
	if e.Hint != "" {
		text += "\nhint: " + printable(e.Hint)
	}
	_, err := fmt.Fprintln(a.stdout, text)
	return err
}
