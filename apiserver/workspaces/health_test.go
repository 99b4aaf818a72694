package workspaces

import (
	"strings"
	"testing"
)

// TestHealth: a workspace is healthy while its keyspace can be read, and alive without it.
func TestHealth(t *testing.T) {
	s := newStage(t, "a", "b")
	get := func(path string) response { return s.as(admin, "GET", "/clusters/a"+path, "") }
	for _, path := range []string{"/healthz", "/livez", "/readyz", "/readyz/etcd"} {
		if got := s.want(200, get(path)); got.body != "ok" {
			t.Errorf("%s: %s", path, got.body)
		}
	}
	if got := s.want(200, get("/readyz?verbose")); !strings.Contains(got.body, "[+]etcd ok") {
		t.Error(got.body)
	}
	s.want(200, s.as(alice, "GET", "/clusters/b/readyz", ""))
	s.want(403, s.as(alice, "GET", "/clusters/b/readyz/etcd", ""))
	s.want(404, get("/readyz/unknown"))
	if err := s.keyspaces["a"].Close(); err != nil {
		t.Fatal(err)
	}
	s.want(500, get("/readyz"))
	s.want(500, get("/healthz/etcd"))
	s.want(200, get("/livez"))
	s.want(200, s.as(admin, "GET", "/clusters/b/readyz", ""))
}
