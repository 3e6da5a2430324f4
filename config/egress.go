package config

import (
	"errors"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/errdefs"
)

// defaultEgress is the field of that name.
type defaultEgress struct {
	Kind string `json:"kind"`
	// Allow lists rules, of static and, besides what it finds, of resolver.
	Allow []string `json:"allow,omitempty"`
	// Command (a program with its arguments) or URL is where a resolver's rules
	// come from, one on each line.
	Command []string `json:"command,omitempty"`
	URL     string   `json:"url,omitempty"`
}

// The kinds.
const (
	denyAll  = "deny-all"
	allowAll = "allow-all"
	static   = "static"
	resolver = "resolver"
	hostKind = "host"
)

// credential is one of `credentials`. Exactly one of Value, Env and File has the
// secret.
type credential struct {
	ID          string   `json:"id,omitempty"`
	Host        string   `json:"host"`
	Methods     []string `json:"methods,omitempty"`
	Paths       []string `json:"paths,omitempty"`
	Header      string   `json:"header,omitempty"`
	Prefix      string   `json:"prefix,omitempty"`
	Value       string   `json:"value,omitempty"`
	Env         string   `json:"env,omitempty"`
	File        string   `json:"file,omitempty"`
	Placeholder string   `json:"placeholder,omitempty"`
}

// readEgress reads `defaultEgress`, `credentials`, `allowInwardFor` and
// `network`, which must agree. In the container tier `network` names a bridge and
// belongs to the backend.
func (d *document) readEgress(o *object, factory *driver.Factory) {
	before := len(o.faults.invalid)
	if e := o.object("defaultEgress"); e != nil {
		d.DefaultEgress = readDefaultEgress(e)
	}
	list(o, "credentials", "an object", func(place string, fields map[string]any) {
		d.Credentials = append(d.Credentials, readCredential(&object{path: place, fields: fields, faults: o.faults}))
	})
	d.AllowInwardFor = texts(o, "allowInwardFor")
	if factory == nil || factory.Tier != driver.TierContainer {
		d.readNetwork(o)
	}
	if len(o.faults.invalid) > before {
		return
	}
	asked := d.policy()
	if asked == nil {
		if len(d.Credentials)+len(d.AllowInwardFor) > 0 {
			o.faults.add("credentials, allowInwardFor: need the egress gate, which network %s does not have", d.network())
		}
		return
	}
	if _, err := egress.Compile(asked, 0); err != nil {
		for _, reason := range reasonsOf(err) {
			o.faults.add("egress: %s", reason)
		}
	}
}

func reasonsOf(err error) []string {
	var known *errdefs.Error
	if errors.As(err, &known) && len(known.Reasons) > 0 {
		return known.Reasons
	}
	return []string{err.Error()}
}

// texts reads a list of strings.
func texts(o *object, name string) (out []string) {
	list(o, name, "a string", func(_ string, text string) { out = append(out, text) })
	return out
}

// readDefaultEgress reads the fields of the kind that is named, and refuses those
// of the others.
func readDefaultEgress(o *object) *defaultEgress {
	kinds := []string{denyAll, allowAll, static, resolver, hostKind}
	kind, given := o.text("kind")
	if !given || !slices.Contains(kinds, kind) {
		if given {
			o.faults.add("%s: %s is unknown; known: %s%s", o.at("kind"), quote(kind), strings.Join(kinds, ", "), suggest(kind, kinds))
		} else {
			o.faults.add("%s: must be one of %s", o.at("kind"), strings.Join(kinds, ", "))
		}
		return nil
	}
	e := &defaultEgress{Kind: kind}
	switch kind {
	case static:
		if _, there := o.fields["allow"]; !there {
			o.faults.add("%s: is missing; static has the list of rules there", o.at("allow"))
		}
		e.Allow = texts(o, "allow")
	case resolver:
		e.Allow = texts(o, "allow")
		e.Command = texts(o, "command")
		e.URL, _ = o.text("url")
		e.check(o)
	}
	o.done()
	return e
}

// check judges where a resolver's rules come from.
func (e *defaultEgress) check(o *object) {
	if (len(e.Command) > 0) == (e.URL != "") {
		o.faults.add("%s: must have exactly one of command and url", o.path)
		return
	}
	if len(e.Command) > 0 && !filepath.IsAbs(e.Command[0]) {
		o.faults.add("%s: %s is not an absolute path", index(o.at("command"), 0), quote(e.Command[0]))
	}
	if e.URL == "" {
		return
	}
	at, err := url.Parse(e.URL)
	if err != nil || at.Scheme != "https" || at.Host == "" || at.User != nil || at.Fragment != "" {
		o.faults.add("%s: must be an https:// address without a user and a fragment", o.at("url"))
	}
}

func readCredential(o *object) credential {
	text := func(name string) string {
		out, _ := o.text(name)
		return out
	}
	c := credential{
		ID: text("id"), Host: text("host"), Methods: texts(o, "methods"), Paths: texts(o, "paths"), Header: text("header"),
		Prefix: text("prefix"), Value: text("value"), Env: text("env"), File: o.absolute("file"), Placeholder: text("placeholder"),
	}
	sources := 0
	for _, source := range []string{c.Value, c.Env, c.File} {
		if source != "" {
			sources++
		}
	}
	if sources != 1 {
		o.faults.add("%s: must have exactly one of value, env, file", o.path)
	}
	if c.Env != "" && !envName.MatchString(c.Env) {
		o.faults.add("%s: %s is not the name of an environment variable ([A-Za-z_][A-Za-z0-9_]*)", o.at("env"), quote(c.Env))
	}
	o.done()
	return c
}

// readNetwork reads `network`.
func (d *document) readNetwork(o *object) {
	network, given := o.text("network")
	known := []string{string(driver.NetworkNone), string(driver.NetworkGated), string(driver.NetworkHost)}
	switch {
	case !given:
	case !slices.Contains(known, network):
		o.faults.add("%s: %s is unknown; known: %s%s", o.at("network"), quote(network), strings.Join(known, ", "), suggest(network, known))
	case d.DefaultEgress != nil && !d.DefaultEgress.agrees(driver.Network(network)):
		o.faults.add("network: %s contradicts defaultEgress.kind %s", network, d.DefaultEgress.Kind)
	default:
		d.Network = driver.Network(network)
	}
}

// agrees reports whether a kind can be had with a network: to deny everything
// takes no gate, and can have one, for SetEgress.
func (e *defaultEgress) agrees(network driver.Network) bool {
	switch e.Kind {
	case hostKind:
		return network == driver.NetworkHost
	case denyAll:
		return network != driver.NetworkHost
	}
	return network == driver.NetworkGated
}

// network is the one that the file asks for, empty where it says nothing.
func (d *document) network() driver.Network {
	switch {
	case d.Network != "":
		return d.Network
	case d.DefaultEgress == nil && len(d.Credentials) > 0:
		return driver.NetworkGated
	case d.DefaultEgress == nil:
		return ""
	case d.DefaultEgress.Kind == hostKind:
		return driver.NetworkHost
	case d.DefaultEgress.Kind == denyAll && len(d.Credentials) == 0:
		return driver.NetworkNone
	}
	return driver.NetworkGated
}

// policy is what the file allows, nil without a gate.
func (d *document) policy() *berm.Egress {
	if d.network() != driver.NetworkGated {
		return nil
	}
	out := &berm.Egress{AllowInwardFor: slices.Clone(d.AllowInwardFor)}
	for _, c := range d.Credentials {
		out.Credentials = append(out.Credentials, c.credential())
	}
	e := d.DefaultEgress
	if e == nil {
		return out
	}
	out.AllowAny = e.Kind == allowAll
	out.Allow = slices.Clone(e.Allow)
	switch {
	case len(e.Command) > 0:
		out.Resolver = commandResolver(e.Command)
	case e.URL != "":
		out.Resolver = urlResolver(e.URL)
	}
	return out
}

// SecretFiles lists the files that the credentials are read from at each request.
// No sandbox may see one.
func (f *File) SecretFiles() []string {
	var out []string
	for _, c := range f.document.Credentials {
		if c.File != "" {
			out = append(out, c.File)
		}
	}
	return out
}

func (c credential) credential() berm.Credential {
	out := berm.Credential{
		ID: c.ID, Host: c.Host, Methods: slices.Clone(c.Methods), Paths: slices.Clone(c.Paths),
		Header: c.Header, Prefix: c.Prefix, Value: c.Value, Placeholder: c.Placeholder,
	}
	switch {
	case c.Env != "":
		out.Source = SecretFromEnv(c.Env)
	case c.File != "":
		out.Source = SecretFromFile(c.File)
	}
	return out
}

// redact takes out what may be a secret: values, the arguments of a command and
// the query of an address.
func (d *document) redactEgress() {
	d.Credentials = slices.Clone(d.Credentials)
	for i := range d.Credentials {
		if d.Credentials[i].Value != "" {
			d.Credentials[i].Value = redacted
		}
	}
	if d.DefaultEgress == nil {
		return
	}
	e := *d.DefaultEgress
	e.Command = slices.Clone(e.Command)
	for i := range e.Command {
		if i > 0 {
			e.Command[i] = redacted
		}
	}
	// A path may be as secret as a query.
	if u, err := url.Parse(e.URL); err == nil && e.URL != "" && (u.Path != "" && u.Path != "/" || u.RawQuery != "") {
		e.URL = u.Scheme + "://" + u.Host + "/" + redacted
	}
	d.DefaultEgress = &e
}
