package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/playground/postgres"
)

func TestWritesAreFoundInEvents(t *testing.T) {
	for event, want := range map[string]int{
		`{"type":"MODIFIED","object":{"metadata":{"managedFields":[{"fieldsV1":{"f:spec":{".":{},"f:write":{}}}}]},"spec":{"data":"x","write":41}}}`: 41,
		`{"type":"ADDED","object":{"spec":{"write":-1,"data":"x"}}}`:                                                                                 unmeasured,
		`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7"}}}`:                                                                          -2,
		`{"type":"ADDED","object":{"metadata":{"managedFields":[{"fieldsV1":{"f:write":{}}}]}}}`:                                                     -2,
		`{"type":"ADDED","object":{"spec":{"write":`:                                                                                                 -2,
	} {
		if got, ok := writeOf([]byte(event)); ok != (want != -2) || ok && got != want {
			t.Errorf("%s: %d, %v", event, got, ok)
		}
	}
}

// A watch that the server ends is resumed after the last event.
func TestWatchesAreResumed(t *testing.T) {
	streams := []string{
		`{"type":"MODIFIED","object":{"metadata":{"resourceVersion":"11"},"spec":{"write":0}}}` + "\n" +
			`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"12"}}}` + "\n",
		`{"type":"MODIFIED","object":{"metadata":{"resourceVersion":"13"},"spec":{"write":1}}}` + "\n",
	}
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Query().Get("resourceVersion"))
		fmt.Fprint(w, streams[len(asked)-1])
	}))
	defer server.Close()
	f := &apiClient{title: "fake", http: server.Client(), collectionURL: server.URL}
	came, err := f.watch(t.Context(), (&writeNumbers{}).journal(2), "10", func() {})
	if err != nil || came.resumed != 1 || came.at[0] == 0 || came.at[1] < came.at[0] || !slices.Equal(asked, []string{"10", "12"}) {
		t.Errorf("came %+v, %v; asked for %v", came, err, asked)
	}
}

func TestJournalSendsAtRateWithoutAnswers(t *testing.T) {
	numbers := &writeNumbers{}
	numbers.journal(5)
	j := numbers.journal(20)
	release := make(chan struct{})
	if err := j.send(t.Context(), 1000, func(_ context.Context, i, number int) error {
		if number != 5+i {
			t.Errorf("write %d has number %d", i, number)
		}
		if i == len(j.sent)-1 {
			close(release) // all other writes have been sent and not answered
		}
		<-release
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	came := &arrivals{at: make([]int64, len(j.sent))}
	for i := range came.at {
		j.acked[i].Store(j.sent[i].Load() + int64(2*time.Millisecond))
		came.at[i] = j.sent[i].Load() + int64(i)*int64(time.Millisecond)
	}
	sent, acked := j.delays(came)
	if sent.ms(100) != 19 || acked.ms(100) != 17 || acked.ms(0) != 0 {
		t.Errorf("delays up to %v, %v after the answer", sent.ms(100), acked.ms(100))
	}
}

func TestDelaysAreComparedWithAClustersOwn(t *testing.T) {
	var out bytes.Buffer
	writeDelays(&out, []delay{
		{Path: throughClusters, Writer: "east", Watcher: "west", P50: 30, P99: 40, Max: 50, CPUs: 1},
		{Path: withinCluster, Writer: "east", Watcher: "east", P50: 10, P99: 20, Max: 21},
		{Path: throughClusters, Round: 1, Writer: "east", Watcher: "west", P50: 10, P99: 40, Max: 70, CPUs: 1.5, disturbance: disturbance{Stolen: 0.5}, Resumed: 3},
	})
	lines := strings.Split(out.String(), "\n")
	if f := strings.Fields(lines[1]); !strings.Contains(lines[1], " 20.0 ") || !strings.Contains(lines[1], " 70.0 ") ||
		strings.Join(f[len(f)-6:], " ") != "2.00 2.00 1.25 0.00 0.25 3" {
		t.Errorf("%q", lines[1])
	}
}

// A few simulated members receive every write of one another.
func TestCrowdSeesEveryWrite(t *testing.T) {
	db, err := postgres.Start(t.Context(), postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Stop(); err != nil {
			t.Error(err)
		}
	})
	c := crowd{Servers: 1, Members: 3, Each: 2, Writes: 30}
	run, err := c.measure(t.Context(), db, filepath.Join(t.TempDir(), "crowd"))
	if err != nil {
		t.Fatal(err)
	}
	if run.Events != 3*2*30 || run.P50 <= 0 || run.Max < run.P99 || run.MemoryMiB <= 0 {
		t.Errorf("%+v", run)
	}
}
