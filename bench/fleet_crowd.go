package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/atoll-dev/atoll/playground/child"
)

// Simulated members: one process that answers for all of them, each at a port of its
// own, with as much of the Kubernetes API as Atoll asks of a member: health, version,
// types, nodes, and objects that are applied, watched, and ready at once.

const crowdRole = "fleet-crowd"

// crowdConfig is what the process is given.
type crowdConfig struct {
	Members         int
	ServerCert, Key string
	Documents       string // a file of them, by path
	// FirstPort is that of the first member, and the others follow; 0 means any that are free.
	FirstPort int
	// Kept is the file that keeps their objects: it is read if it is there, and written when asked for.
	Kept string
}

// crowdReady is what it reports: the port of each member.
type crowdReady struct{ Ports []int }

// crowdStats is what it tells of itself.
type crowdStats struct {
	// Watched is how many members have their Deployments watched.
	Watched     int
	Requests    int64
	Connections int64
	Objects     int
}

// statsPath is where it tells that, at each port.
const statsPath = "/crowd"

// keepPath is where it is told to write down what the members have.
const keepPath = statsPath + "/keep"

// throng is all simulated members.
type throng struct {
	kept        string
	members     map[int]*simulated // by port
	documents   map[string][]byte
	requests    atomic.Int64
	connections atomic.Int64
}

func runCrowd(ctx context.Context, link *child.Link) error {
	var cfg crowdConfig
	if err := link.Config(&cfg); err != nil {
		return err
	}
	t := &throng{members: map[int]*simulated{}, kept: cfg.Kept}
	raw, err := os.ReadFile(cfg.Documents)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, &t.documents); err != nil {
		return fmt.Errorf("read the documents: %w", err)
	}
	server := &http.Server{Handler: t, ConnState: func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			t.connections.Add(1)
		case http.StateClosed, http.StateHijacked:
			t.connections.Add(-1)
		}
	}}
	defer server.Close()
	var ready crowdReady
	var listeners []net.Listener
	for i := range cfg.Members {
		port := 0
		if cfg.FirstPort != 0 {
			port = cfg.FirstPort + i
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			return fmt.Errorf("open a port for member %d: %w", i, err)
		}
		port = l.Addr().(*net.TCPAddr).Port
		t.members[port] = newSimulated(memberName(i))
		ready.Ports, listeners = append(ready.Ports, port), append(listeners, l)
	}
	if err := t.load(); err != nil {
		return err
	}
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { failed <- server.ServeTLS(l, cfg.ServerCert, cfg.Key) }()
	}
	if err := link.Ready(ready); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-failed:
		return err
	}
}

func memberName(i int) string { return fmt.Sprintf("member-%04d", i) }

func (t *throng) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	m := t.members[at.Port]
	if r.URL.Path == statsPath {
		writeObject(w, http.StatusOK, t.stats())
		return
	}
	if r.URL.Path == keepPath {
		if err := t.store(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
		return
	}
	t.requests.Add(1)
	if r.Header.Get("Authorization") != "Bearer "+m.name {
		refuseWith(w, http.StatusUnauthorized, "Unauthorized")
		return
	}
	switch path := r.URL.Path; {
	case path == "/readyz":
		_, _ = w.Write([]byte("ok"))
	case path == "/version":
		writeObject(w, http.StatusOK, map[string]string{"major": "1", "minor": "36", "gitVersion": "v1.36.3"})
	case t.documents[path] != nil:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(t.documents[path])
	default:
		m.serve(w, r)
	}
}

func (t *throng) stats() crowdStats {
	s := crowdStats{Requests: t.requests.Load(), Connections: t.connections.Load()}
	for _, m := range t.members {
		watched, objects := m.stats()
		s.Objects += objects
		if watched {
			s.Watched++
		}
	}
	return s
}

// address is where something is in a member's API.
type address struct{ groupVersion, resource, namespace, name, sub string }

// addressOf reads a path: /api/v1/… or /apis/GROUP/VERSION/…
func addressOf(path string) (a address, ok bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		a.groupVersion, parts = parts[1], parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		a.groupVersion, parts = parts[1]+"/"+parts[2], parts[3:]
	default:
		return a, false
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		a.namespace, parts = parts[1], parts[2:]
	}
	a.resource = parts[0]
	if len(parts) > 1 {
		a.name = parts[1]
	}
	if len(parts) > 2 {
		a.sub = parts[2]
	}
	return a, true
}

// kindInCrowd gives the kind of what simulated members serve, "" of all else.
func kindInCrowd(a address) string {
	return map[string]string{"v1 nodes": "Node", "v1 namespaces": "Namespace", "v1 configmaps": "ConfigMap", "apps/v1 deployments": "Deployment",
		"apiextensions.k8s.io/v1 customresourcedefinitions": "CustomResourceDefinition"}[a.groupVersion+" "+a.resource]
}

func writeObject(w http.ResponseWriter, code int, object any) {
	raw, err := json.Marshal(object)
	if err != nil {
		code, raw = http.StatusInternalServerError, []byte(err.Error())
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(raw)
}

func refuseWith(w http.ResponseWriter, code int, reason string) {
	writeObject(w, code, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": reason, "code": code})
}

// shelf is the objects of one resource of one member.
type shelf struct {
	kind, groupVersion string
	objects            map[string]*boxed // by namespace and name
	watching           map[chan []byte]bool
}

// boxed is one object.
type boxed struct {
	raw, spec  []byte
	uid        string
	generation int
	namespace  string
	name       string
}

// simulated is one member.
type simulated struct {
	name string

	mu      sync.Mutex
	version int
	shelves map[string]*shelf
}
