package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"
)

const (
	// warmups are runs that are not counted.
	warmups = 3
	// sayEvery is how often a long row says where it is.
	sayEvery = 5 * time.Second
)

// sample is one side of a comparison.
type sample struct {
	name string
	once func(context.Context) (time.Duration, error)
	took []time.Duration
}

// quantile is the value below which the share q of all runs is.
func (s *sample) quantile(q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(s.took))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func (s *sample) median() time.Duration { return s.quantile(0.5) }

// millis is the median as a figure.
func (s *sample) millis() figure {
	return figure{Name: s.name, Value: milliseconds(s.median()), Unit: "ms"}
}

// rate is the median as a figure of throughput.
func (s *sample) rate(bytes int64) figure {
	return figure{Name: s.name, Value: float64(bytes) / (1 << 20) / s.median().Seconds(), Unit: "MiB/s"}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// interleave runs all samples in turn, so that a machine whose speed drifts
// treats them alike, and begins with another one each time, so that none always
// comes behind the same other.
func interleave(ctx context.Context, runs int, samples ...*sample) error {
	say := newProgress(samples[len(samples)-1].name, runs)
	for i := range runs + warmups {
		for k := range samples {
			s := samples[(i+k)%len(samples)]
			if err := ctx.Err(); err != nil {
				return err
			}
			took, err := s.once(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			if i >= warmups {
				s.took = append(s.took, took)
			}
		}
		say.at(i - warmups + 1)
	}
	return nil
}

func timed(do func() error) (time.Duration, error) {
	began := time.Now()
	err := do()
	return time.Since(began), err
}

// progress tells a person that something is going on, beside the results.
type progress struct {
	name string
	all  int
	last time.Time
}

func newProgress(name string, all int) *progress {
	return &progress{name: name, all: all, last: time.Now()}
}

func (p *progress) at(done int) {
	if done > 0 && time.Since(p.last) >= sayEvery {
		p.last = time.Now()
		fmt.Fprintf(os.Stderr, "bench: %s: %d of %d\n", p.name, done, p.all)
	}
}
