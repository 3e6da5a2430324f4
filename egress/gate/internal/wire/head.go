package wire

import (
	"bytes"
	"strconv"
	"strings"
)

// Fault is why a message is refused. Status is the answer's, for requests.
type Fault struct {
	Status int
	What   string
}

// Error says what is wrong.
func (f *Fault) Error() string { return f.What }

func bad(what string) *Fault     { return &Fault{Status: 400, What: what} }
func tooMuch(what string) *Fault { return &Fault{Status: 431, What: what} }

// Framing is how a message's body ends.
type Framing struct {
	// Chunked: by its last chunk. Otherwise Length bytes.
	Chunked bool
	Length  int64
	// Raw: there are no messages after this head, only bytes.
	Raw bool
	// Interim: another head of the same message follows (a response's 1xx).
	Interim bool
}

// Request is a checked request head.
type Request struct {
	Method, Target string
	// Minor is the version's: HTTP/1.0 or HTTP/1.1.
	Minor   int
	Host    string
	HasHost bool
	Body    Framing
	// Upgrade is the upgrade that is asked for, lower case, empty when none.
	Upgrade string
}

const maxMethod = 32

// fields is what the framing of a message depends on.
type fields struct {
	length    string
	lengths   int
	encoding  string
	encodings int
	host      string
	hosts     int
	upgrade   string
	expect    string
	asks      bool // Connection names upgrade
}

// ParseRequest checks a whole request head with its final empty line. With a
// fault the request has what was understood by then, for the record; it is never
// nil.
func ParseRequest(head []byte, maxFields int) (*Request, *Fault) {
	req := &Request{}
	line, rest, ok := bytes.Cut(head, []byte("\r\n"))
	if !ok {
		return req, bad("no request line")
	}
	if fault := req.line(line); fault != nil {
		return req, fault
	}
	f, fault := parseFields(rest, maxFields)
	if fault != nil {
		return req, fault
	}
	switch {
	case f.hosts > 1:
		return req, bad("more than one Host")
	case f.hosts == 0 && req.Minor == 1 && req.Method != "CONNECT":
		return req, bad("no Host")
	case f.hosts == 1 && !plainHost(f.host):
		return req, bad("a Host that is no host")
	case f.expect != "" && !strings.EqualFold(f.expect, "100-continue"):
		return req, bad("an unknown expectation")
	}
	req.Host, req.HasHost = f.host, f.hosts == 1
	if f.asks {
		req.Upgrade = strings.ToLower(f.upgrade)
	}
	req.Body, fault = f.framing(req.Minor)
	if fault != nil {
		return req, fault
	}
	if req.Method == "CONNECT" && (req.Body.Chunked || req.Body.Length > 0) {
		return req, bad("CONNECT with a body")
	}
	return req, nil
}

// CheckLine checks a method and a target that came without a request line, as they
// do in HTTP/2, and are going to stand in one.
func CheckLine(method, target string) *Fault {
	return new(Request).line([]byte(method + " " + target + " HTTP/1.1"))
}

// line reads the request line: method, target and version.
func (r *Request) line(line []byte) *Fault {
	method, rest, ok := bytes.Cut(line, []byte(" "))
	if !ok || !methodName(method) {
		return bad("a method that is none")
	}
	r.Method = string(method)
	for _, c := range rest {
		if c < ' ' || c >= 0x7f {
			return bad("a request line with other than printable ASCII")
		}
	}
	target, version, ok := strings.Cut(string(rest), " ")
	if !ok || target == "" || strings.IndexByte(target, '#') >= 0 {
		return bad("a target that is none")
	}
	r.Target = target
	switch version {
	case "HTTP/1.1":
		r.Minor = 1
	case "HTTP/1.0":
	default:
		return bad("a request line that does not end in HTTP/1.0 or HTTP/1.1")
	}
	return nil
}

// methodName takes upper case and dashes: every registered method, and nothing
// that two servers could read in two ways.
func methodName(s []byte) bool {
	for _, c := range s {
		if (c < 'A' || c > 'Z') && c != '-' {
			return false
		}
	}
	return len(s) > 0 && len(s) <= maxMethod
}

// plainHost is a coarse check: the gate decides by the target, and Host only has
// to be such that nobody can read two hosts out of it.
func plainHost(s string) bool {
	if s == "" {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '.', c == '-', c == '_', c == ':', c == '[', c == ']':
		default:
			return false
		}
	}
	return true
}

// parseFields checks every field line up to the empty one, which must be last.
func parseFields(block []byte, maxFields int) (*fields, *Fault) {
	f := &fields{}
	for n := 0; ; n++ {
		line, rest, ok := bytes.Cut(block, []byte("\r\n"))
		if !ok {
			return nil, bad("a head without an end")
		}
		if len(line) == 0 {
			if len(rest) > 0 {
				return nil, bad("bytes after the head")
			}
			return f, nil
		}
		if n >= maxFields {
			return nil, tooMuch("too many fields")
		}
		if fault := f.add(line); fault != nil {
			return nil, fault
		}
		block = rest
	}
}

func (f *fields) add(line []byte) *Fault {
	name, value, ok := bytes.Cut(line, []byte(":"))
	if !ok || !token(name) {
		// Also a folded line, and space before the colon.
		return bad("a field whose name is none")
	}
	for _, c := range value {
		if c < ' ' && c != '\t' || c == 0x7f {
			return bad("a control character in a field")
		}
	}
	value = bytes.Trim(value, " \t")
	switch {
	case foldEqual(name, "Content-Length"):
		if f.lengths > 0 && f.length != string(value) {
			return bad("two values of Content-Length")
		}
		f.length = string(value)
		f.lengths++
	case foldEqual(name, "Transfer-Encoding"):
		f.encoding = string(value)
		f.encodings++
	case foldEqual(name, "Host"):
		f.host = string(value)
		f.hosts++
	case foldEqual(name, "Upgrade"):
		if f.upgrade != "" {
			f.upgrade += ","
		}
		f.upgrade += string(value)
	case foldEqual(name, "Expect"):
		f.expect += string(value)
	case foldEqual(name, "Connection"):
		for part := range bytes.SplitSeq(value, []byte(",")) {
			f.asks = f.asks || foldEqual(bytes.Trim(part, " \t"), "upgrade")
		}
	}
	return nil
}

// framing refuses every message whose end could be read in two ways.
func (f *fields) framing(minor int) (Framing, *Fault) {
	switch {
	case f.encodings > 0 && f.lengths > 0:
		return Framing{}, bad("Content-Length and Transfer-Encoding")
	case f.encodings > 1, f.encodings == 1 && !strings.EqualFold(f.encoding, "chunked"):
		return Framing{}, bad("a Transfer-Encoding other than chunked")
	case f.encodings == 1 && minor == 0:
		return Framing{}, bad("Transfer-Encoding in HTTP/1.0")
	case f.encodings == 1:
		return Framing{Chunked: true}, nil
	case f.lengths == 0:
		return Framing{}, nil
	}
	n, ok := digits(f.length)
	if !ok {
		return Framing{}, bad("a Content-Length that is no number")
	}
	return Framing{Length: n}, nil
}

func digits(s string) (int64, bool) {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

// ParseResponse checks a whole response head. method is the request's.
func ParseResponse(head []byte, method string, maxFields int) (Framing, *Fault) {
	line, rest, ok := bytes.Cut(head, []byte("\r\n"))
	if !ok {
		return Framing{}, bad("no status line")
	}
	status, minor, ok := statusLine(line)
	if !ok {
		return Framing{}, bad("a status line that is none")
	}
	f, fault := parseFields(rest, maxFields)
	if fault != nil {
		return Framing{}, fault
	}
	if f.lengths > 1 {
		return Framing{}, bad("more than one Content-Length")
	}
	body, fault := f.framing(minor)
	switch {
	case fault != nil:
		return Framing{}, fault
	case status == 101:
		return Framing{Raw: true}, nil
	case status < 200:
		return Framing{Interim: true}, nil
	case method == "HEAD", status == 204, status == 304:
		return Framing{}, nil
	case f.encodings == 0 && f.lengths == 0:
		// Up to the connection's end.
		return Framing{Raw: true}, nil
	}
	return body, nil
}

func statusLine(line []byte) (status, minor int, ok bool) {
	const form = "HTTP/1.1 200"
	if len(line) < len(form) || string(line[:7]) != "HTTP/1." || line[7] != '0' && line[7] != '1' || line[8] != ' ' {
		return 0, 0, false
	}
	if len(line) > len(form) && line[len(form)] != ' ' {
		return 0, 0, false
	}
	for _, c := range line {
		if c < ' ' && c != '\t' || c == 0x7f {
			return 0, 0, false
		}
	}
	n, ok := digits(string(line[9:12]))
	return int(n), int(line[7] - '0'), ok && n >= 100
}

func token(name []byte) bool {
	if len(name) == 0 {
		return false
	}
	for _, c := range name {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return true
}

func foldEqual(name []byte, want string) bool {
	return len(name) == len(want) && strings.EqualFold(string(name), want)
}
