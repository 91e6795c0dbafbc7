package supervisor

import (
	"testing"
	"time"
)

func TestEstimateIsOfTheMeanRate(t *testing.T) {
	for name, c := range map[string]struct {
		done, total int64
		took        time.Duration
		rate        int64
		left        time.Duration
	}{
		"nothing yet":      {0, 100, time.Second, 0, 0},
		"no time yet":      {10, 100, 0, 0, 0},
		"a quarter":        {25, 100, time.Second, 25, 3 * time.Second},
		"all":              {100, 100, 2 * time.Second, 50, 0},
		"of unknown total": {100, 0, time.Second, 100, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if rate, left := estimate(c.done, c.total, c.took); rate != c.rate || left != c.left {
				t.Errorf("%d bytes a second, %s left; want %d and %s", rate, left, c.rate, c.left)
			}
		})
	}
}
