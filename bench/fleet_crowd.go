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

// Simulated members: one process serves all of them, each on a port of its own, with the
// part of the Kubernetes API that Atoll uses: health, version, discovery, nodes, and
// objects that can be applied and watched and are ready at once.

const crowdRole = "fleet-crowd"

// crowdConfig is the configuration of the process.
type crowdConfig struct {
	Members         int
	ServerCert, Key string
	Documents       string // a JSON file of OpenAPI documents by URL path
	// FirstPort is the port of the first member; the others have the next ones. 0 means any free ports.
	FirstPort int
	// Kept is the file for the members' objects. The process reads it if it exists and writes it on request.
	Kept string
}

// crowdReady is the readiness report of the process: the port of each member.
type crowdReady struct{ Ports []int }

// crowdStats are the statistics of the process.
type crowdStats struct {
	// Watched is the number of members whose Deployments are watched.
	Watched     int
	Requests    int64
	Connections int64
	Objects     int
}

// statsPath serves crowdStats, on every port.
const statsPath = "/crowd"

// keepPath makes the process write the members' objects to the file Kept.
const keepPath = statsPath + "/keep"

// simulatedFleet is the HTTP handler of all simulated members.
type simulatedFleet struct {
	kept        string
	members     map[int]*simulatedMember // by port
	documents   map[string][]byte
	requests    atomic.Int64
	connections atomic.Int64
}

func runCrowd(ctx context.Context, link *child.Link) error {
	var cfg crowdConfig
	if err := link.Config(&cfg); err != nil {
		return err
	}
	t := &simulatedFleet{members: map[int]*simulatedMember{}, kept: cfg.Kept}
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
		t.members[port] = newSimulatedMember(memberName(i))
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

func (t *simulatedFleet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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

func (t *simulatedFleet) stats() crowdStats {
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

// address names an object or collection in a member's API.
type address struct{ groupVersion, resource, namespace, name, sub string }

// addressOf parses a URL path: /api/v1/… or /apis/GROUP/VERSION/…
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

// simulatedKind returns the kind of a resource that simulated members serve, "" for others.
func simulatedKind(a address) string {
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

// collection holds the objects of one resource in one member.
type collection struct {
	kind, groupVersion string
	objects            map[string]*storedObject // by namespace/name
	watching           map[chan []byte]bool
}

// storedObject is one object.
type storedObject struct {
	raw, spec  []byte
	uid        string
	generation int
	namespace  string
	name       string
}

// simulatedMember is one member.
type simulatedMember struct {
	name string

	mu          sync.Mutex
	version     int
	collections map[string]*collection
}
