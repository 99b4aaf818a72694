package packages

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
)

const mirrored123 = "/mirror/tf.example.com/acme/demo/"

// startMirror starts a network mirror with the package demo.
func startMirror(t *testing.T, archive []byte, hashes ...Digest) (*serve, *NetworkMirror, *Client) {
	t.Helper()
	s, server := startServer(t)
	s.set(mirrored123+"index.json", object(`{"versions": {"1.10.0": {}, "1.2.3": {}, "nonsense": {}}}`))
	s.set(mirrored123+"1.2.3.json", object(`{"archives": {"linux_amd64": {"url": "files/demo.zip", "hashes": %s}, "darwin_arm64": {"url": ""}}}`, list(hashes)))
	s.set(mirrored123+"files/demo.zip", text(archive))
	c := client(t, server)
	m, err := NewNetworkMirror(c, strings.Replace(server.URL, "https://", "https://user:hunter2@", 1)+"/mirror")
	if err != nil {
		t.Fatal(err)
	}
	return s, m, c
}

func list(hashes []Digest) string {
	var quoted []string
	for _, h := range hashes {
		quoted = append(quoted, fmt.Sprintf("%q", h))
	}
	return "[" + strings.Join(quoted, ",") + "]"
}

func TestNetworkMirror(t *testing.T) {
	archive := pack(t, files()...)
	z, h := zh(archive), h1(t, files())
	for _, claimed := range [][]Digest{nil, {z}, {h}, {z, h}, {zh(nil), h}, {"h9:unknown"}} {
		s, m, c := startMirror(t, archive, claimed...)
		versions, err := m.Versions(t.Context(), demo.Source)
		if want := []Version{"1.2.3", "1.10.0"}; err != nil || !slices.Equal(versions, want) {
			t.Errorf("%v, %v", versions, err)
		}
		s.set(mirrored123+"files/demo.zip", func(w http.ResponseWriter, r *http.Request) {
			if user, password, _ := r.BasicAuth(); user != "user" || password != "hunter2" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			text(archive)(w, r)
		})
		for _, required := range []Digest{z, h} {
			got, err := New(openStore(t, storeDir(t)), c, Limits{}).Install(t.Context(), request(m, required))
			if err != nil || got.Matched != required || got.Archive != z || got.Content != h || strings.Contains(got.From, "hunter2") {
				t.Errorf("claimed %v: %+v, %v", claimed, got, err)
			}
		}
	}
}

// TestClaimIsCheckedFirst: an archive that contradicts the mirror's own claim is not opened either.
func TestClaimIsCheckedFirst(t *testing.T) {
	rubbish := []byte("this is no archive")
	_, m, c := startMirror(t, rubbish, zh(nil))
	_, err := New(openStore(t, storeDir(t)), c, Limits{}).Install(t.Context(), request(m, zh(rubbish)))
	failsWith(t, err, ErrRefused, "claimed by its origin")
}

// TestNetworkMirrorErrors: every possible error of a mirror.
func TestNetworkMirrorErrors(t *testing.T) {
	archive := pack(t, files()...)
	z := zh(archive)
	version := func(format string, args ...any) func(*serve) {
		return func(s *serve) { s.set(mirrored123+"1.2.3.json", object(format, args...)) }
	}
	tests := []struct {
		name   string
		change func(*serve)
		kind   error // nil is any
		says   string
	}{
		{"no such version", func(s *serve) { s.set(mirrored123+"1.2.3.json", status(404)) }, ErrNotFound, "1.2.3"},
		{"no such platform", version(`{"archives": {"darwin_arm64": {"url": "x"}}}`), ErrNotFound, "not for linux_amd64"},
		{"no archives", version(`{}`), ErrNotFound, "not for linux_amd64"},
		{"not allowed", func(s *serve) { s.set(mirrored123+"1.2.3.json", status(403)) }, nil, "credentials"},
		{"a page to log in", func(s *serve) { s.set(mirrored123+"1.2.3.json", text([]byte("<html>"))) }, nil, "instead of application/json"},
		{"no JSON", version(`{"archives": `), nil, "invalid JSON"},
		{"other JSON", version(`{"archives": 7}`), nil, "invalid JSON"},
		{"no address", version(`{"archives": {"linux_amd64": {}}}`), nil, "no valid address"},
		{"odd address", version(`{"archives": {"linux_amd64": {"url": "https://user:hunter2@[bad"}}}`), nil, "no valid address"},
		{"address without TLS", version(`{"archives": {"linux_amd64": {"url": "http://user:hunter2@tf.example.com/x?token=hunter2"}}}`), ErrInvalid, "http://tf.example.com/x?…"},
		{"address of a file", version(`{"archives": {"linux_amd64": {"url": "file:///etc/passwd"}}}`), ErrInvalid, "https://"},
		{"no such archive", func(s *serve) { s.set(mirrored123+"files/demo.zip", status(404)) }, ErrNotFound, "demo.zip"},
		{"another archive", func(s *serve) { s.set(mirrored123+"files/demo.zip", text([]byte("another"))) }, ErrRefused, string(zh([]byte("another")))},
		{"claims another archive", version(`{"archives": {"linux_amd64": {"url": "files/demo.zip", "hashes": [%q]}}}`, zh(nil)), ErrRefused, "claimed by its origin"},
		{"claims another content", version(`{"archives": {"linux_amd64": {"url": "files/demo.zip", "hashes": [%q]}}}`, h1(t, files()[:1])), ErrRefused, "claimed by its origin"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, m, c := startMirror(t, archive)
			tt.change(s)
			dir := storeDir(t)
			_, err := New(openStore(t, dir), c, Limits{}).Install(t.Context(), request(m, z))
			if err == nil || tt.kind != nil && !isKind(err, tt.kind) || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%v", err)
			}
			if tt.kind == nil && (isKind(err, ErrRefused) || isKind(err, ErrNotFound)) {
				t.Errorf("%v is of a wrong kind", err)
			}
			if left := tree(t, dir); left != emptyStore {
				t.Errorf("left behind:\n%s", left)
			}
		})
	}
	_, m, _ := startMirror(t, archive)
	_, err := m.Versions(t.Context(), Address{"tf.example.com", "acme", "other"})
	failsWith(t, err, ErrNotFound, "other")
}

func isKind(err, kind error) bool {
	for _, k := range []error{ErrRefused, ErrNotFound, ErrInvalid} {
		if is(err, k) != (k == kind) {
			return false
		}
	}
	return true
}

func TestMirrorAddresses(t *testing.T) {
	c := NewClient(ClientConfig{})
	for _, bad := range []string{"", "mirror", "http://user:hunter2@mirror.example.com/", "ftp://mirror.example.com/", "https://mirror.example.com/?token=hunter2",
		"https://mirror.example.com/#a", "https://user:hunter2@[bad"} {
		_, err := NewNetworkMirror(c, bad)
		failsWith(t, err, ErrInvalid)
		if strings.Contains(fmt.Sprint(err), "hunter2") {
			t.Error(err)
		}
	}
	for _, good := range []string{"https://user:hunter2@mirror.example.com", "https://mirror.example.com/a/b/"} {
		m, err := NewNetworkMirror(c, good)
		if err != nil || strings.Contains(m.String(), "hunter2") {
			t.Errorf("%v, %v", m, err)
		}
	}
}

// TestLoopbackMirror: a mirror on this machine without TLS, which LoopbackHTTP allows.
func TestLoopbackMirror(t *testing.T) {
	archive := pack(t, files()...)
	s := &serve{paths: map[string]http.HandlerFunc{}}
	server := httptest.NewServer(s)
	defer server.Close()
	s.set("/tf.example.com/acme/demo/1.2.3.json", object(`{"archives": {"linux_amd64": {"url": "/demo.zip"}}}`))
	s.set("/demo.zip", text(archive))
	if _, err := NewNetworkMirror(NewClient(ClientConfig{}), server.URL); err == nil {
		t.Error("it was not asked for")
	}
	c := NewClient(ClientConfig{LoopbackHTTP: true, Clock: newImpatient(t)})
	defer c.Close()
	m, err := NewNetworkMirror(c, server.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(openStore(t, storeDir(t)), c, Limits{}).Install(t.Context(), request(m, zh(archive))); err != nil {
		t.Error(err)
	}
	if _, err := url.Parse(server.URL); err != nil {
		t.Error(err)
	}
}
