package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeParts has one cluster.
type fakeParts struct{ runs bool }

func (f *fakeParts) Pull(part string) error {
	if part != "east" || !f.runs {
		return errors.New("pull " + part + ": it is not running")
	}
	f.runs = false
	return nil
}

func (f *fakeParts) Return(_ context.Context, part string) error {
	if part != "east" || f.runs {
		return errors.New("return " + part + ": it is already running")
	}
	f.runs = true
	return nil
}

func TestOrders(t *testing.T) {
	dir := t.TempDir()
	give := func(verb string, parts ...string) (string, error) {
		var answer bytes.Buffer
		err := order(t.Context(), dir, verb, parts, &answer)
		return strings.TrimSpace(answer.String()), err
	}
	if _, err := give(pull, "east"); err == nil || !strings.Contains(err.Error(), "start one") {
		t.Errorf("without a playground: %v", err)
	}
	var printed bytes.Buffer
	orders, err := takeOrders(dir, &fakeParts{runs: true}, newOutput(&printed))
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, ordersFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("other users can read the URL that accepts commands: %v, %v", info, err)
	}
	for _, step := range []struct {
		verb, part, answer, err string
	}{
		{pull, "east", "east pulled", ""},
		{pull, "east", "", "pull east: it is not running"},
		{restore, "east", "east returned", ""},
		{pull, "nowhere", "", "pull nowhere: it is not running"},
	} {
		answer, err := give(step.verb, step.part)
		if answer != step.answer || (err == nil) != (step.err == "") || err != nil && err.Error() != step.err {
			t.Errorf("%s %s: %q, %v", step.verb, step.part, answer, err)
		}
	}
	if _, err := give(pull); err == nil || !strings.Contains(err.Error(), "name a cluster") {
		t.Errorf("without a name: %v", err)
	}
	if got := printed.String(); !strings.Contains(got, "pulled") || !strings.Contains(got, "returned") {
		t.Errorf("the playground does not print the commands: %q", got)
	}

	url, err := os.ReadFile(filepath.Join(dir, ordersFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := orders.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ordersFile), url, 0o600); err != nil {
		t.Fatal(err)
	}
	// Like after a crash. The error must not show the secret in the URL.
	if _, err := give(pull, "east"); err == nil || !strings.Contains(err.Error(), "does not answer") || strings.Contains(err.Error(), "http") {
		t.Errorf("playground has exited: %v", err)
	}
}

func TestOptions(t *testing.T) {
	for _, test := range []struct {
		o    options
		want string // stretched members, or the error
	}{
		{options{clusters: 3, servers: 1, topology: beside}, ""},
		{options{clusters: 4, servers: 1, topology: stretched}, "east west north c4"},
		{options{clusters: 0, servers: 1, topology: beside}, "--clusters"},
		{options{clusters: 3, servers: 0, topology: beside}, "--servers"},
		{options{clusters: 3, servers: 3, topology: stretched}, "each cluster has one"},
		{options{clusters: 3, servers: 1, topology: "star"}, "--topology"},
	} {
		cfg, err := test.o.config()
		got := strings.Join(cfg.Stretched, " ")
		if err != nil {
			got = err.Error()
		}
		if test.want == "" && got != "" || !strings.Contains(got, test.want) {
			t.Errorf("%+v: %s, want %s", test.o, got, test.want)
		}
	}
}
