package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/atoll-dev/atoll/kv"
)

// webHandler serves the HTTP endpoints. Their paths and the format of /health are etcd's,
// which probes use. /livez does not query the keyspace: a restart cannot repair a database,
// and would make a server forget that its database has lost acknowledged writes.
func (s *Server) webHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.Metrics())
	// failure returns the reason why the keyspace is not served, "" if it is.
	failure := func(r *http.Request) string {
		ctx, cancel := context.WithTimeout(r.Context(), scrapeTimeout)
		defer cancel()
		err := kv.Probe(ctx, s.adapter.ks)
		switch {
		case s.ctx.Err() != nil:
			return "the server is stopping"
		case errors.Is(err, kv.ErrBehind), errors.Is(err, kv.ErrDropped):
			return err.Error()
		case err != nil:
			return "the keyspace does not answer"
		}
		return ""
	}
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if reason := failure(r); reason != "" {
			http.Error(w, reason, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		reason := failure(r)
		if reason == "" {
			reason = s.alarmReason(r)
		}
		if reason != "" {
			w.WriteHeader(http.StatusServiceUnavailable)
			text, _ := json.Marshal(reason)
			fmt.Fprintf(w, "{\"health\":\"false\",\"reason\":%s}\n", text)
			return
		}
		fmt.Fprintln(w, `{"health":"true","reason":""}`)
	})
	return mux
}

// alarmReason is etcd's reason for a keyspace with an alarm, "" if it has none or if the
// request excludes it. A server with the alarm is ready, because it answers reads.
func (s *Server) alarmReason(r *http.Request) string {
	ctx, cancel := context.WithTimeout(r.Context(), scrapeTimeout)
	defer cancel()
	alarms, err := s.adapter.listAlarms(ctx)
	if err != nil {
		return "the keyspace does not answer"
	}
	for _, a := range alarms {
		if !slices.Contains(r.URL.Query()["exclude"], a.Alarm.String()) {
			return "ALARM " + a.Alarm.String()
		}
	}
	return ""
}
