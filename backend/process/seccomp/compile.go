//go:build linux

package seccomp

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

// Offsets in struct seccomp_data. Arguments are 64 bits; the low half is first
// on both architectures.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
)

// maxProgram is the kernel's limit (BPF_MAXINSNS).
const maxProgram = 4096

// maxJump is the longest conditional jump: offsets have 8 bits.
const maxJump = 255

// policy is everything that a filter decides.
type policy struct {
	// arch is the AUDIT_ARCH value of the native ABI; calls by any other ABI get
	// foreign.
	arch    uint32
	foreign Action
	// rest lists what holds for numbers outside the rules, by first number,
	// ascending. Numbers before the first are allowed.
	rest  []span
	rules []Rule
}

// span says what is done with the numbers from first on.
type span struct {
	first  uint32
	action Action
}

// segment is a run of numbers with one treatment.
type segment struct {
	first    uint32
	rules    []Rule
	fallback Action
}

// key is equal for segments that compile to the same code.
func (s segment) key() string {
	out := s.fallback.String()
	for _, r := range s.rules {
		out = fmt.Sprintf("%s|%v %v", out, r.When, r.Action)
	}
	return out
}

// compile turns a policy into a program. It fails on a table that does not make
// sense.
func (p policy) compile() ([]unix.SockFilter, error) {
	segments, err := p.segments()
	if err != nil {
		return nil, err
	}
	a := &assembler{returns: map[Action]label{}}
	bodies := map[string]label{}
	entries := make([]label, len(segments))
	for i, s := range segments {
		key := s.key()
		entry, known := bodies[key]
		if !known {
			entry = a.body(s.rules, s.fallback)
			bodies[key] = entry
		}
		entries[i] = entry
	}
	native := a.load(offsetNumber, a.search(segments, entries))
	foreign := a.result(p.foreign)
	a.load(offsetArch, a.jump(unix.BPF_JEQ, p.arch, native, foreign))
	if len(a.code) > maxProgram {
		return nil, fmt.Errorf("the filter has %d instructions, more than %d", len(a.code), maxProgram)
	}
	slices.Reverse(a.code)
	return a.code, nil
}

// segments splits the numbers into runs: one for each call with rules, and what
// lies between them.
func (p policy) segments() ([]segment, error) {
	byNumber := map[uint32][]Rule{}
	for _, r := range p.rules {
		if err := r.check(byNumber[r.Number]); err != nil {
			return nil, err
		}
		byNumber[r.Number] = append(byNumber[r.Number], r)
	}
	starts := []uint32{0}
	for _, s := range p.rest {
		starts = append(starts, s.first)
	}
	for number := range byNumber {
		starts = append(starts, number)
		if number != ^uint32(0) {
			starts = append(starts, number+1)
		}
	}
	slices.Sort(starts)
	var out []segment
	for _, first := range slices.Compact(starts) {
		next := segment{first: first, rules: byNumber[first], fallback: p.fallback(first)}
		if len(next.rules) > 0 && len(next.rules[0].When) == 0 {
			next.fallback, next.rules = next.rules[0].Action, nil
		}
		if len(out) > 0 && out[len(out)-1].key() == next.key() {
			continue
		}
		out = append(out, next)
	}
	return out, nil
}

// fallback gives what holds for a number when no rule does.
func (p policy) fallback(number uint32) Action {
	action := Allow
	for _, s := range p.rest {
		if number >= s.first {
			action = s.action
		}
	}
	return action
}

// check refuses a rule that cannot work after the ones before it.
func (r Rule) check(before []Rule) error {
	if n := len(before); n > 0 && len(before[n-1].When) == 0 {
		return fmt.Errorf("rule for %s is never reached", r.Call)
	}
	for _, c := range r.When {
		if c.Arg > 5 || c.Value&^c.Mask != 0 || c.Op > NonZero {
			return fmt.Errorf("rule for %s has a condition that cannot work: %v", r.Call, c)
		}
	}
	return nil
}

// label is a place in the program, counted from its end: jumps only go forwards,
// so the assembler writes from the last instruction to the first and knows every
// target already.
type label int

// assembler holds the program in reverse.
type assembler struct {
	code    []unix.SockFilter
	returns map[Action]label
}

// emit puts an instruction before what is there.
func (a *assembler) emit(code uint16, k uint32) label {
	a.code = append(a.code, unix.SockFilter{Code: code, K: k})
	return label(len(a.code) - 1)
}

// distance is the jump offset from the next instruction to a label.
func (a *assembler) distance(to label) int { return len(a.code) - int(to) - 1 }

// result gives a return of the action.
func (a *assembler) result(action Action) label {
	if at, known := a.returns[action]; known && a.distance(at) < maxJump {
		return at
	}
	at := a.emit(unix.BPF_RET|unix.BPF_K, uint32(action))
	a.returns[action] = at
	return at
}

// reach gives a label from which to is reached and that is itself near enough
// for a conditional jump with one more instruction between.
func (a *assembler) reach(to label) label {
	if a.distance(to) < maxJump {
		return to
	}
	return a.emit(unix.BPF_JMP|unix.BPF_JA, uint32(a.distance(to)))
}

// jump compares the accumulator with k.
func (a *assembler) jump(op uint16, k uint32, yes, no label) label {
	yes, no = a.reach(yes), a.reach(no)
	at := a.emit(unix.BPF_JMP|op|unix.BPF_K, k)
	a.code[at].Jt = uint8(int(at) - int(yes) - 1)
	a.code[at].Jf = uint8(int(at) - int(no) - 1)
	return at
}

// load reads a word of the call's data before what is at next, which has to be
// the instruction emitted last.
func (a *assembler) load(offset uint32, next label) label {
	a.follow(next)
	return a.emit(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, offset)
}

// follow makes the next instruction's successor the one at next.
func (a *assembler) follow(next label) {
	if distance := a.distance(next); distance > 0 {
		a.emit(unix.BPF_JMP|unix.BPF_JA, uint32(distance))
	}
}

// body writes the rules of one call.
func (a *assembler) body(rules []Rule, fallback Action) label {
	next := a.result(fallback)
	for _, r := range slices.Backward(rules) {
		hit := a.result(r.Action)
		for _, c := range slices.Backward(r.When) {
			hit = a.condition(c, hit, next)
		}
		next = hit
	}
	return next
}

// condition writes one test.
func (a *assembler) condition(c Condition, yes, no label) label {
	low := offsetArgs + 8*uint32(c.Arg)
	switch c.Op {
	case NonZero:
		test := a.load(low, a.jump(unix.BPF_JEQ, 0, no, yes))
		return a.load(low+4, a.jump(unix.BPF_JEQ, 0, test, yes))
	case NotEqual:
		yes, no = no, yes
	case Equal:
	}
	if defence.FilterLowHalf.Off() && c.Op == Equal {
		yes = a.load(low+4, a.jump(unix.BPF_JEQ, 0, yes, no))
	}
	test := a.jump(unix.BPF_JEQ, c.Value, yes, no)
	if c.Mask != ^uint32(0) {
		test = a.emit(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, c.Mask)
	}
	return a.load(low, test)
}

// search writes a balanced search for the segment of the call's number, so that
// a call without rules is passed after a handful of comparisons. They look at the
// number alone: the kernel then remembers which numbers are always allowed, and
// does not run the program for them at all.
func (a *assembler) search(segments []segment, entries []label) label {
	if len(segments) == 1 {
		return entries[0]
	}
	middle := len(segments) / 2
	upper := a.search(segments[middle:], entries[middle:])
	lower := a.search(segments[:middle], entries[:middle])
	return a.jump(unix.BPF_JGE, segments[middle].first, upper, lower)
}
