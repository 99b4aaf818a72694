package server

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/kv"
)

// TestIncompleteKeyspace: a keyspace is refused from the beginning of what fills it to its
// end. The record is not one of the keyspaces.
func TestIncompleteKeyspace(t *testing.T) {
	url := SQLiteURL(filepath.Join(t.TempDir(), "a #1.db"))
	db, err := OpenDatastore(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	check := func(keyspace, want string) {
		t.Helper()
		err := db.CheckComplete(t.Context(), keyspace)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", keyspace, err, want)
		}
	}
	check("default", "")
	if names, err := db.Backend.Keyspaces(t.Context()); err != nil || len(names) != 0 {
		t.Errorf("a check creates keyspaces: %v, %v", names, err)
	}
	if err := db.BeginFilling(t.Context(), "default", Incomplete{What: "a restore from /backup", Remedy: "atoll kv restore --mirror"}); err != nil {
		t.Fatal(err)
	}
	check("default", "a restore from /backup")
	check("default", "`atoll kv restore --mirror`")
	check("other", "")
	if err := db.EndFilling(t.Context(), "default"); err != nil {
		t.Fatal(err)
	}
	check("default", "")
	if names, err := db.Keyspaces(t.Context()); err != nil || slices.Contains(names, incompleteKeyspace) {
		t.Errorf("%v, %v", names, err)
	}
}

// TestReopenDropped opens a keyspace again, as after a split, that was dropped meanwhile. No
// new one is created, and one that another server has created is not used.
func TestReopenDropped(t *testing.T) {
	db, err := OpenDatastore(t.Context(), SQLiteURL(filepath.Join(t.TempDir(), "a.db")))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	e := &engines{datastore: db, name: "w"}
	for range 2 {
		if _, err := e.table(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Backend.(kv.Dropper).Drop(t.Context(), "w"); err != nil {
		t.Fatal(err)
	}
	if _, err := e.table(t.Context(), ""); !errors.Is(err, kv.ErrDropped) || !strings.Contains(err.Error(), `"w"`) {
		t.Error("no new one:", err)
	}
	if _, err := db.OpenExisting(t.Context(), "w"); !errors.Is(err, kv.ErrKeyNotFound) {
		t.Error("it was created:", err)
	}
	if _, err := db.Open(t.Context(), "w"); err != nil {
		t.Fatal(err)
	}
	if _, err := e.table(t.Context(), ""); !errors.Is(err, kv.ErrDropped) {
		t.Error("a new one:", err)
	}
}

// TestDatastoreURLs: what is not a datastore's URL is refused without printing a secret.
func TestDatastoreURLs(t *testing.T) {
	for url, want := range map[string]string{
		"atoll.db":                      "is not a URL",
		"geheim@host/db":                "is not a URL",
		"me:geheim://host":              "is not a URL",
		"mysql://me:geheim@host/db":     `unknown scheme "mysql"`,
		"sqlite://relative/file.db":     "three slashes",
		"sqlite:///tmp/a#1/file.db":     "%23",
		"sqlite:///tmp/a?b/file.db":     "%3F",
		"postgres://me:a/geheim@h:1/db": "percent-encoded",
	} {
		_, err := OpenDatastore(t.Context(), url)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
	}
}
