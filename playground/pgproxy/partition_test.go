package pgproxy_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/playground/pgproxy"
)

// TestPartition blocks one direction or both. A statement is executed without an answer, or does not
// arrive. After the partition, delayed messages arrive.
func TestPartition(t *testing.T) {
	p := start(t, pgproxy.Faults{})
	name := table(t)
	for d, want := range map[pgproxy.Direction]string{pgproxy.ToClient: "1", pgproxy.ToServer: "0", pgproxy.Both: "0"} {
		for _, blackhole := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, blackhole=%v", d, blackhole), func(t *testing.T) {
				a := connect(t, p, "a")
				t.Cleanup(p.Link("a").Thaw)
				direct(t, "TRUNCATE "+name)
				if blackhole {
					p.Link("a").Blackhole(d)
				} else {
					p.Link("a").Partition(d)
				}
				done := make(chan error, 1)
				go func() { done <- simple(t.Context(), a, "INSERT INTO "+name+" VALUES (1)") }()
				few, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				if _, err := tryConnect(few, p, "a"); err == nil {
					t.Error("a new connection got through")
				}
				if want == "1" {
					for begin := time.Now(); direct(t, "SELECT count(*) FROM "+name) != want; {
						if time.Since(begin) > 20*time.Second {
							t.Fatal("the statement was not executed")
						}
					}
				}
				select {
				case err := <-done:
					t.Fatal("the client got an answer:", err)
				default:
				}
				if got := direct(t, "SELECT count(*) FROM "+name); got != want {
					t.Errorf("%s rows, want %s", got, want)
				}
				p.Link("a").Thaw()
				err := <-done
				if blackhole {
					if err == nil {
						t.Error("a connection that lost data continues")
					}
				} else if err != nil {
					t.Error(err)
				}
				want := want
				if !blackhole {
					want = "1"
				}
				if got := direct(t, "SELECT count(*) FROM "+name); got != want {
					t.Errorf("%s rows afterwards, want %s", got, want)
				}
				do(t, connect(t, p, "a"), "SELECT 1")
			})
		}
	}
	if got := p.Counts()[pgproxy.Lost]; got != 3 {
		t.Errorf("%d connections were lost, want 3", got)
	}
}
