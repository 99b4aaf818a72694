package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/playground/child"
)

func TestMain(m *testing.M) {
	child.Main(roles())
	os.Exit(m.Run())
}

func TestPercentiles(t *testing.T) {
	s := &samples{}
	for i := 1; i <= 101; i++ {
		s.add(time.Duration(i) * time.Millisecond)
	}
	if got := s.ms(50); got != 51 {
		t.Errorf("p50 %v", got)
	}
	if got := s.ms(99); got != 100 {
		t.Errorf("p99 %v", got)
	}
	if got := (&samples{}).ms(50); got != 0 {
		t.Errorf("p50 without samples %v", got)
	}
	if got := median([]float64{4, 1, 3, 2}); got != 2.5 {
		t.Errorf("median %v", got)
	}
}

func TestParallelDoesEachOperationOnceAndStopsAtAnError(t *testing.T) {
	var seen [1000]atomic.Int32
	_, s, err := parallel(t.Context(), 16, len(seen), func(_ context.Context, _, i int) error {
		seen[i].Add(1)
		return nil
	})
	if err != nil || len(s.all) != len(seen) {
		t.Fatalf("%d samples, error %v", len(s.all), err)
	}
	for i := range seen {
		if n := seen[i].Load(); n != 1 {
			t.Errorf("operation %d done %d times", i, n)
		}
	}
	broken := errors.New("broken")
	if _, _, err := parallel(t.Context(), 4, 100, func(_ context.Context, _, i int) error {
		if i == 10 {
			return broken
		}
		return nil
	}); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}

func TestTableShowsMediansAndInvertsWatchRatios(t *testing.T) {
	r := &report{}
	for round, rate := range []float64{100, 300, 200} {
		r.Stores = append(r.Stores,
			measurement{System: "etcd", Round: round, Op: "create", Clients: 64, Rate: rate},
			measurement{System: "atoll", Round: round, Op: "create", Clients: 64, Rate: 2 * rate},
			measurement{System: "etcd", Round: round, Op: "watch", Clients: 64, Rate: 1, P50: 3},
			measurement{System: "atoll", Round: round, Op: "watch", Clients: 64, Rate: 1, P50: 1})
	}
	var out bytes.Buffer
	writeStores(&out, r.Stores, []string{"etcd", "atoll"})
	lines := strings.Split(out.String(), "\n")
	if f := strings.Fields(lines[1]); f[2] != "200" || f[len(f)-1] != "2.00" {
		t.Errorf("create: %q", lines[1])
	}
	if f := strings.Fields(lines[2]); f[len(f)-1] != "3.00" {
		t.Errorf("watch: %q", lines[2])
	}
}

// Every store runs a small plan without errors.
func TestStoresRunPlan(t *testing.T) {
	systems, err := startSystems(t.Context(), t.TempDir(), 4)
	for _, s := range systems {
		defer s.close()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range systems {
		for i, w := range plan([]int{1, 8}, 1200, 0.05) {
			if w.Kind == "list" {
				w.Count = 1200
			}
			w.Prefix = "/test/" + string(rune('a'+i)) + "/"
			ms, err := s.run(t.Context(), w)
			if err != nil {
				t.Fatalf("%s: %s with %d clients: %v", s.name(), w.Kind, w.Clients, err)
			}
			for _, m := range ms {
				if m.Rate <= 0 || m.P50 <= 0 {
					t.Errorf("%s: %s with %d clients: rate %v, p50 %v", s.name(), m.Op, m.Clients, m.Rate, m.P50)
				}
			}
		}
	}
}
