package main

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// errSize says what a size looks like.
var errSize = errors.New("a size is a whole number with B, K, M, G or T, in powers of 1024: 512M, 1GiB")

// parseSize reads a size in bytes. Units are binary; the decimal-looking KB, MB
// are refused, because people do not agree on what they mean.
func parseSize(text string) (int64, error) {
	digits := strings.TrimRight(text, "BKMGTi")
	unit := text[len(digits):]
	shift, known := map[string]uint{
		"": 0, "B": 0, "K": 10, "KiB": 10, "M": 20, "MiB": 20, "G": 30, "GiB": 30, "T": 40, "TiB": 40,
	}[unit]
	if !known || digits == "" || strings.Trim(digits, "0123456789") != "" {
		return 0, errSize
	}
	value, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || value > math.MaxInt64>>shift {
		return 0, errors.New("the size is too large")
	}
	if value == 0 {
		return 0, errors.New("the size is zero")
	}
	return value << shift, nil
}
