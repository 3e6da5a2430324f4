package config

import "fmt"

// Nearest returns the candidate that was probably meant by name, or "" when none
// is close: at most a third of the letters, and never more than three, may have
// to change. Of equally close candidates the first is taken.
func Nearest(name string, candidates []string) string {
	const longest = 64 // a longer name is no typing error, and the cost is quadratic
	if len(name) > longest {
		return ""
	}
	best, bestDistance := "", min(3, max(1, len(name)/3))+1
	for _, candidate := range candidates {
		if len(candidate) > longest {
			continue
		}
		if d := distance(name, candidate); d < bestDistance {
			best, bestDistance = candidate, d
		}
	}
	return best
}

// suggest is the end of a refusal: the nearest candidate as a question, or "".
func suggest(name string, candidates []string) string {
	if best := Nearest(name, candidates); best != "" {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	return ""
}

// distance is the Levenshtein distance without regard to case, in bytes. Two
// neighbours that changed places count as one.
func distance(a, b string) int {
	older := make([]int, len(b)+1)
	previous := make([]int, len(b)+1)
	current := make([]int, len(b)+1)
	for j := range previous {
		previous[j] = j
	}
	for i := 1; i <= len(a); i++ {
		current[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if lower(a[i-1]) == lower(b[j-1]) {
				cost = 0
			}
			current[j] = min(previous[j]+1, current[j-1]+1, previous[j-1]+cost)
			if i > 1 && j > 1 && lower(a[i-1]) == lower(b[j-2]) && lower(a[i-2]) == lower(b[j-1]) {
				current[j] = min(current[j], older[j-2]+1)
			}
		}
		older, previous, current = previous, current, older
	}
	return previous[len(b)]
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}
