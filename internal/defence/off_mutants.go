//go:build berm_mutants

package defence

// off lists the defences that are off. The linker sets it (-X). The names stand
// between bytes that no name has; package internal/mutants links a blank and
// writes names into it, which is a hundred times as fast as to link again.
var off string

// Off reports whether the defence was left out of this build.
func (d Defence) Off() bool {
	for begin, end := 0, 0; end <= len(off); end++ {
		if end < len(off) && named(off[end]) {
			continue
		}
		if end > begin && off[begin:end] == string(d) {
			return true
		}
		begin = end + 1
	}
	return false
}

// named is true for what names are made of.
func named(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == ':' }
