package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// deploymentClient is a client of an API server with Deployments: Atoll or a cluster.
type deploymentClient struct{ *apiClient }

// observations holds the times at which an API server first reported the Deployments of
// one run, and first reported them with all replicas ready; 0 before that.
type observations struct {
	seen, ready []int64
	replicas    int    // of a ready Deployment
	onReady     func() // called for each Deployment that becomes ready, if set
}

func newObservations(count, replicas int) *observations {
	return &observations{seen: make([]int64, count), ready: make([]int64, count), replicas: replicas}
}

// routeRun is one run on a route.
type routeRun struct {
	route
	name    string
	journal *journal
	here    *observations
	there   []*observations // by cluster
}

// deploymentEvent is the part of a watch event that is read.
type deploymentEvent struct {
	Type   string `json:"type"`
	Object struct {
		Metadata struct {
			Name            string `json:"name"`
			ResourceVersion string `json:"resourceVersion"`
			Generation      int64  `json:"generation"`
		} `json:"metadata"`
		Status struct {
			ObservedGeneration int64 `json:"observedGeneration"`
			ReadyReplicas      int   `json:"readyReplicas"`
		} `json:"status"`
	} `json:"object"`
}

// follow watches until the expected number of the run's Deployments is ready. It calls
// synced when the watch has started.
func (s *deploymentClient) follow(ctx context.Context, t *routeRun, seen *observations, expected int, synced func()) error {
	version, err := s.list(ctx)
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	for left := expected; left > 0; {
		query := url.Values{"watch": {"1"}, "resourceVersion": {version}, "timeoutSeconds": {"3600"}}
		events, err := s.open(ctx, http.MethodGet, s.collectionURL+"?"+query.Encode(), nil)
		if err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		synced()
		version, left, err = t.record(events, seen, version, left)
		events.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", s.title, err)
		}
		if left > 0 && ctx.Err() != nil {
			return fmt.Errorf("%s: %w, with %d of %d Deployments not ready", s.title, context.Cause(ctx), left, expected)
		}
	}
	return nil
}

// record records events until all Deployments are ready or the stream ends.
func (t *routeRun) record(events io.Reader, seen *observations, version string, left int) (string, int, error) {
	for lines := bufio.NewReaderSize(events, 64<<10); left > 0; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return version, left, nil
		}
		now := t.journal.now()
		var e deploymentEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return version, left, fmt.Errorf("watch: %w", err)
		}
		if e.Type == "ERROR" {
			return version, left, fmt.Errorf("watch: %s", line)
		}
		version = e.Object.Metadata.ResourceVersion
		number, ours := strings.CutPrefix(e.Object.Metadata.Name, t.name+"-")
		i, err := strconv.Atoi(number)
		if !ours || err != nil || i >= len(seen.seen) {
			continue
		}
		if seen.seen[i] == 0 {
			seen.seen[i] = now
		}
		o := &e.Object
		if seen.ready[i] == 0 && o.Status.ReadyReplicas >= seen.replicas && o.Status.ObservedGeneration >= o.Metadata.Generation {
			seen.ready[i] = now
			left--
			if seen.onReady != nil {
				seen.onReady()
			}
		}
	}
	return version, left, nil
}

// summarize computes the percentiles of the recorded times.
func (t *routeRun) summarize(row *delivery) {
	seen, ran, ready := &samples{}, &samples{}, &samples{}
	since := func(s *samples, i int, at int64) {
		if at != 0 {
			s.add(time.Duration(at - t.journal.sent[i].Load()))
		}
	}
	for i := range t.journal.sent {
		since(ready, i, t.here.ready[i])
		for _, there := range t.there {
			since(seen, i, there.seen[i])
			since(ran, i, there.ready[i])
		}
	}
	writes := t.journal.writes()
	row.AckP50, row.AckP99 = writes.ms(50), writes.ms(99)
	row.SeenP50, row.SeenP99, row.SeenMax = seen.ms(50), seen.ms(99), seen.ms(100)
	row.RanP50, row.RanP99 = ran.ms(50), ran.ms(99)
	row.ReadyP50, row.ReadyP99, row.ReadyMax = ready.ms(50), ready.ms(99), ready.ms(100)
}
