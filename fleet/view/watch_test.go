package view

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// lines reads the events of a watch.
type lines struct {
	t    *testing.T
	read *bufio.Scanner
}

func (s *fixture) watch(who Caller, path string) *lines {
	s.t.Helper()
	answer := s.send(who, "GET", path, nil)
	s.t.Cleanup(func() { answer.Body.Close() })
	if answer.StatusCode != http.StatusOK {
		s.t.Fatalf("watch %s: %s", path, answer.Status)
	}
	return &lines{s.t, bufio.NewScanner(answer.Body)}
}

// next returns the next event as "ADDED name", and its version.
func (l *lines) next() (what, version string) {
	l.t.Helper()
	if !l.read.Scan() {
		l.t.Fatalf("the watch ended: %v", l.read.Err())
	}
	var e struct {
		Type   string
		Object struct {
			Code     int32
			Metadata metav1.ObjectMeta
		}
	}
	if err := json.Unmarshal(l.read.Bytes(), &e); err != nil {
		l.t.Fatal(err)
	}
	if e.Type == "ERROR" {
		return fmt.Sprintf("ERROR %d", e.Object.Code), ""
	}
	return strings.TrimSpace(e.Type + " " + e.Object.Metadata.Name), e.Object.Metadata.ResourceVersion
}

func (l *lines) expect(want ...string) (version string) {
	l.t.Helper()
	for _, w := range want {
		var got string
		if got, version = l.next(); got != w {
			l.t.Fatalf("the watch sent %q, want %q", got, w)
		}
	}
	return version
}

// TestWatch: a watch sends additions, changes and removals, and can be resumed.
func TestWatch(t *testing.T) {
	s := newFixture(t, secret("one"), bind("one", "east"), secret("two"))
	path := eastView + "/api/v1/secrets?watch=true&allowWatchBookmarks=true"
	w := s.watch(syncerOf("east"), path+"&sendInitialEvents=true&resourceVersionMatch=NotOlderThan")
	version := w.expect("ADDED one", "BOOKMARK")
	s.control.Put(bind("two", "west", "east"))
	w.expect("ADDED two")
	changed := secret("one")
	changed.Object["data"] = map[string]any{"word": "bmV3"}
	s.control.Put(changed)
	w.expect("MODIFIED one")
	s.control.Put(bind("two", "west"))
	w.expect("DELETED two")

	// A resumed watch sends each missed change once.
	again := s.watch(syncerOf("east"), path+"&resourceVersion="+version)
	again.expect("MODIFIED one", "DELETED two")

	s.watch(syncerOf("east"), path+"&resourceVersion=7").expect("ERROR 410")
	if code, text := s.ask(syncerOf("east"), "GET", path+"&resourceVersion=none", nil); code != http.StatusGone {
		t.Errorf("an invalid version: %d %s", code, text)
	}
}

// TestWatchEndsWithCredential: a watch ends when its credential is revoked or its cluster is
// deleted.
func TestWatchEndsWithCredential(t *testing.T) {
	for what, change := range map[string]func(*fixture){
		"revoked": func(s *fixture) {
			c := pullCluster("east")
			c.SetAnnotations(map[string]string{v1alpha1.CredentialAnnotation: "another"})
			s.control.Put(c)
		},
		"pushed": func(s *fixture) {
			c := pullCluster("east")
			c.Object["spec"] = map[string]any{"mode": "Push"}
			s.control.Put(c)
		},
		"gone": func(s *fixture) { s.control.Delete(v1alpha1.ClusterResource, "", "east") },
	} {
		t.Run(what, func(t *testing.T) {
			s := newFixture(t, secret("one"), bind("one", "east"))
			w := s.watch(syncerOf("east"), eastView+"/api/v1/secrets?watch=1")
			w.expect("ADDED one")
			change(s)
			w.expect("ERROR 403")
			if code, text := s.ask(syncerOf("east"), "GET", eastView+"/api/v1/secrets", nil); code != http.StatusForbidden || strings.Contains(text, "word") {
				t.Errorf("%d %s", code, text)
			}
		})
	}
}
