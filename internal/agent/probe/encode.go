package probe

import (
	"errors"
	"strconv"
)

// An Order and a Report are lines of a name, a blank and a quoted value; a list
// has a line for each item. The last line is "end", so that what was cut off is
// not taken for an answer.
const endLine = "end"

var errForm = errors.New("malformed")

// encoder collects lines.
type encoder []byte

func (e *encoder) text(name, value string) {
	*e = strconv.AppendQuote(append(append(*e, name...), ' '), value)
	*e = append(*e, '\n')
}

func (e *encoder) list(name string, values []string) {
	for _, value := range values {
		e.text(name, value)
	}
}

func (e *encoder) number(name string, value uint64) { e.text(name, strconv.FormatUint(value, 10)) }

func (e *encoder) truth(name string, value bool) { e.text(name, strconv.FormatBool(value)) }

func (e *encoder) end() []byte { return append(*e, endLine+"\n"...) }

// decode calls take for each line. take says whether it knows the name and likes
// the value.
func decode(data []byte, take func(name, value string) bool) error {
	text := string(data)
	for text != "" {
		var line string
		line, text = cut(text, '\n')
		if line == endLine && text == "" {
			return nil
		}
		name, quoted := cut(line, ' ')
		value, err := strconv.Unquote(quoted)
		if err != nil || !take(name, value) {
			return errForm
		}
	}
	return errForm
}

// Encode gives the Order as the child reads it.
func (o *Order) Encode() []byte {
	var e encoder
	e.text("agent", strconv.Itoa(o.AgentPID))
	e.list("write", o.WritePaths)
	e.list("socket", o.AbstractSockets)
	e.list("size", o.SizePaths)
	for _, t := range o.Trials {
		e.text("trial", t.Kind+" "+t.Argument)
	}
	return e.end()
}

// DecodeOrder reads what Encode gave.
func DecodeOrder(data []byte) (*Order, error) {
	o := &Order{}
	err := decode(data, func(name, value string) bool {
		var err error
		switch name {
		case "agent":
			o.AgentPID, err = strconv.Atoi(value)
		case "write":
			o.WritePaths = append(o.WritePaths, value)
		case "socket":
			o.AbstractSockets = append(o.AbstractSockets, value)
		case "size":
			o.SizePaths = append(o.SizePaths, value)
		case "trial":
			kind, argument := cut(value, ' ')
			o.Trials = append(o.Trials, Trial{kind, argument})
		default:
			return false
		}
		return err == nil
	})
	if err != nil || o.AgentPID <= 0 {
		return nil, errForm
	}
	return o, nil
}

// texts names the Report's single texts.
func (r *Report) texts() map[string]*string {
	return map[string]*string{
		"CapInh": &r.CapInheritable, "CapPrm": &r.CapPermitted, "CapEff": &r.CapEffective, "CapBnd": &r.CapBounding,
		"CapAmb": &r.CapAmbient, "SigIgn": &r.SignalsIgnored, "uidMap": &r.UIDMap,
	}
}

// Encode gives the Report as the agent reads it.
func (r *Report) Encode() []byte {
	var e encoder
	for name, value := range r.texts() {
		e.text(name, *value)
	}
	e.truth("noNewPrivileges", r.NoNewPrivileges)
	e.number("seccompMode", uint64(r.SeccompMode))
	e.number("uid", uint64(r.UID))
	e.list("writable", r.Writable)
	e.list("route", r.Routes)
	e.list("connected", r.Connected)
	for _, size := range r.Sizes {
		e.number("size", size)
	}
	e.number("processLimit", r.ProcessLimit)
	e.truth("agentReadable", r.AgentReadable)
	for _, o := range r.Outcomes {
		e.text("outcome", strconv.FormatBool(o.Reached)+" "+strconv.FormatUint(o.Amount, 10)+" "+o.Detail)
	}
	return e.end()
}

// DecodeReport reads what Encode gave. Every single value has to be there, once.
func DecodeReport(data []byte) (*Report, error) {
	r := &Report{}
	texts := r.texts()
	seen := map[string]bool{}
	err := decode(data, func(name, value string) bool {
		if r.item(name, value) {
			return true
		}
		if seen[name] {
			return false
		}
		seen[name] = true
		if target, ok := texts[name]; ok {
			*target = value
			return true
		}
		return r.single(name, value)
	})
	if err != nil || len(seen) != len(texts)+singles {
		return nil, errForm
	}
	return r, nil
}

// item takes one item of a list.
func (r *Report) item(name, value string) bool {
	switch name {
	case "writable":
		r.Writable = append(r.Writable, value)
	case "route":
		r.Routes = append(r.Routes, value)
	case "connected":
		r.Connected = append(r.Connected, value)
	case "size":
		size, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return false
		}
		r.Sizes = append(r.Sizes, size)
	case "outcome":
		return r.outcome(value)
	default:
		return false
	}
	return true
}

// outcome takes what Encode made of an Outcome.
func (r *Report) outcome(value string) bool {
	reached, rest := cut(value, ' ')
	amount, detail := cut(rest, ' ')
	var o Outcome
	var err, amountErr error
	o.Reached, err = strconv.ParseBool(reached)
	o.Amount, amountErr = strconv.ParseUint(amount, 10, 64)
	o.Detail = detail
	r.Outcomes = append(r.Outcomes, o)
	return err == nil && amountErr == nil
}

// singles is how many names single knows.
const singles = 5

// single takes a value that is no text.
func (r *Report) single(name, value string) bool {
	var err error
	var n uint64
	switch name {
	case "noNewPrivileges":
		r.NoNewPrivileges, err = strconv.ParseBool(value)
	case "agentReadable":
		r.AgentReadable, err = strconv.ParseBool(value)
	case "seccompMode":
		n, err = strconv.ParseUint(value, 10, 32)
		r.SeccompMode = uint32(n)
	case "uid":
		n, err = strconv.ParseUint(value, 10, 32)
		r.UID = uint32(n)
	case "processLimit":
		r.ProcessLimit, err = strconv.ParseUint(value, 10, 64)
	default:
		return false
	}
	return err == nil
}
