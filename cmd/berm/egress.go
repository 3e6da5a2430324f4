package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/config"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/audit"
	"github.com/berm-dev/berm/errdefs"
)

// egressFlags are the flags about the network as they were typed.
type egressFlags struct {
	network, audit     string
	allow, credentials []string
	allowAny           bool
}

func (f *egressFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.network, "network", "", "`NET` is none (default), gated: the egress gate is the only way out, or host: the host's own network, not isolated")
	flags.StringArrayVar(&f.allow, "allow", nil, "let the sandbox reach `HOST`, through the gate: api.example.com, .example.com, *.example.com, HOST:PORT, tcp://HOST:PORT, 192.0.2.0/24 (repeatable; implies --network gated)")
	flags.BoolVar(&f.allowAny, "allow-any", false, "let the sandbox reach every public host, through the gate (implies --network gated)")
	flags.StringArrayVar(&f.credentials, "credential", nil, "put a secret on requests to one host, at the gate: `'host=H,env=NAME'` or file=PATH, and header=, prefix=, method=, path=, id=, placeholder= (repeatable; implies --network gated)")
	flags.StringVar(&f.audit, "audit", "", "append one line of JSON for each decision of the gate to `FILE`; - is the standard error")
	_ = cmd.RegisterFlagCompletionFunc("network", cobra.FixedCompletions([]string{
		string(driver.NetworkNone), string(driver.NetworkGated), string(driver.NetworkHost),
	}, cobra.ShellCompDirectiveNoFileComp))
	for _, name := range []string{"allow", "credential"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
}

// egress puts the flags over the file: a network other than gated takes the
// file's policy away, rules and credentials are added to it.
func (p *planner) egress() {
	cfg, f := &p.plan.config, p.flags.egressFlags
	asks := len(f.allow) > 0 || len(f.credentials) > 0 || f.allowAny
	switch n := driver.Network(f.network); n {
	case "":
		if asks {
			p.gate()
		}
	case driver.NetworkGated:
		p.gate()
	case driver.NetworkNone, driver.NetworkHost:
		cfg.Network, cfg.Egress = n, nil
		if asks {
			p.fault("--network: %s has no gate, which --allow, --allow-any and --credential need", n)
			asks = false
		}
	default:
		p.fault("--network: %q is unknown%s", f.network, hint(f.network, []string{"none", "gated", "host"}))
		asks = false
	}
	if asks {
		p.permit()
	}
	p.secrets()
	p.audit()
}

// gate asks for a gate, with the policy of the file or one that denies all.
func (p *planner) gate() {
	cfg := &p.plan.config
	cfg.Network = driver.NetworkGated
	policy := berm.Egress{}
	if cfg.Egress != nil {
		policy = *cfg.Egress
	}
	policy.Allow, policy.Credentials = slices.Clone(policy.Allow), slices.Clone(policy.Credentials)
	cfg.Egress = &policy
}

// permit adds what the flags allow.
func (p *planner) permit() {
	policy, f := p.plan.config.Egress, p.flags.egressFlags
	policy.Allow = append(policy.Allow, f.allow...)
	policy.AllowAny = policy.AllowAny || f.allowAny
	for _, text := range f.credentials {
		c, err := p.credential(text)
		if err != nil {
			p.fault("--credential: %v", err)
			continue
		}
		policy.Credentials = append(policy.Credentials, c)
	}
	if _, err := egress.Compile(policy, 0); err != nil {
		for _, reason := range reasons(err) {
			p.fault("egress: %s", reason)
		}
	}
}

// credential reads host=...,env=NAME and so on. A value is not among it: command
// lines are for everybody to read.
func (p *planner) credential(text string) (berm.Credential, error) {
	var c berm.Credential
	var source int
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(part, "=")
		if value == "" && key != "prefix" {
			return c, fmt.Errorf("%q in %q is not KEY=VALUE", part, text)
		}
		switch key {
		case "host":
			c.Host = value
		case "id":
			c.ID = value
		case "header":
			c.Header = value
		case "prefix":
			c.Prefix = value
		case "placeholder":
			c.Placeholder = value
		case "method":
			c.Methods = append(c.Methods, value)
		case "path":
			c.Paths = append(c.Paths, value)
		case "env":
			source++
			c.Source = config.SecretFromEnv(value)
		case "file":
			source++
			at := p.absolute("--credential", value)
			p.hidden("--credential", at)
			c.Source = config.SecretFromFile(at)
		case "value":
			return berm.Credential{}, fmt.Errorf("a value would show in every list of processes; give env=NAME or file=PATH")
		default:
			known := []string{"host", "id", "header", "prefix", "placeholder", "method", "path", "env", "file"}
			return c, fmt.Errorf("%q in %q is unknown%s", key, text, hint(key, known))
		}
	}
	if source != 1 || c.Host == "" {
		return c, fmt.Errorf("%q must have host=HOST and exactly one of env=NAME and file=PATH", text)
	}
	return c, nil
}

// secrets refuses credentials that the sandbox could read, and those whose source
// gives nothing now: each of their requests would be denied.
func (p *planner) secrets() {
	if p.plan.config.Egress == nil {
		return
	}
	if slices.ContainsFunc(p.plan.config.Egress.Credentials, func(c berm.Credential) bool { return c.Value != "" }) && p.flags.config != "" {
		p.hidden("--config", p.absolute("--config", p.flags.config))
	}
	for _, file := range p.secretFiles {
		p.hidden("credentials", file)
	}
	for _, reason := range config.MissingSecrets(context.Background(), p.plan.config.Egress) {
		p.fault("%s", reason)
	}
}

// audit checks that records can be written where they are asked for, and not
// within what sandboxes write.
func (p *planner) audit() {
	name := p.flags.audit
	switch {
	case name == "":
		return
	case p.plan.config.Network != driver.NetworkGated:
		p.fault("--audit: there is no gate to keep records of; give --allow or --network gated")
	case name == "-":
		p.plan.audit = name
	default:
		p.plan.audit = p.absolute("--audit", name)
		p.apart("--audit", p.plan.audit)
	}
}

// openAudit opens what the records go to; closing comes after the last gate.
func (a *app) openAudit(name string) (egress.Sink, io.Closer, error) {
	switch name {
	case "":
		return nil, nil, nil
	case "-":
		return audit.Func(func(_ context.Context, r *egress.Record) error {
			line, err := audit.Line(r)
			if err == nil {
				_, err = a.stderr.Write(line)
			}
			return err
		}), nil, nil
	}
	file, err := audit.OpenFile(filepath.Clean(name), audit.FileOptions{})
	if err != nil {
		return nil, nil, errdefs.Wrap(errdefs.KindOf(err), "open audit", err)
	}
	return file, file, nil
}

// reasons gives an error's reasons, or what it says where it has none.
func reasons(err error) []string {
	var known *errdefs.Error
	if errors.As(err, &known) && len(known.Reasons) > 0 {
		return known.Reasons
	}
	return []string{err.Error()}
}
