package kv_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/kv"
)

// FuzzPartitionName checks that partition names are unique, are text that any database
// accepts, and are no other keyspace's name.
func FuzzPartitionName(f *testing.F) {
	f.Add("default", "/registry/events/")
	f.Add("a@b", "%2F \xff\x00/")
	f.Add("x@partition:", "/")
	f.Fuzz(func(t *testing.T, parent, prefix string) {
		if _, _, ok := kv.ParsePartitionName(parent); ok || parent == "" || prefix == "" || strings.Contains(parent, "@partition:") {
			return
		}
		name := kv.PartitionName(parent, prefix)
		p, q, ok := kv.ParsePartitionName(name)
		if !ok || p != parent || q != prefix {
			t.Fatalf("PartitionName(%q, %q) = %q, which parses as %q and %q (%v)", parent, prefix, name, p, q, ok)
		}
		for _, c := range []byte(name[len(parent):]) {
			if c <= ' ' || c >= 0x7f {
				t.Fatalf("%q has the byte %x", name, c)
			}
		}
		if got := kv.PartitionPrefixes(parent, []string{parent, name, "other"}); !slices.Equal(got, []string{prefix}) {
			t.Fatalf("prefixes of %q: %q", parent, got)
		}
	})
}

// TestPartitionNamesAreCanonical checks that other spellings of a name are refused.
func TestPartitionNamesAreCanonical(t *testing.T) {
	for _, name := range []string{
		"default", "default@partition:", "@partition:/a/", "default@partition:/a%2F", "default@partition:/a%", "default@partition:/a%zz",
		"default@partition:/a%0", "default@partition:/é/", "default@partition:/a b/", "default@partition:/a%2f",
	} {
		if parent, prefix, ok := kv.ParsePartitionName(name); ok {
			t.Errorf("%q parses as %q and %q", name, parent, prefix)
		}
	}
}

// TestRepartitionedIsBehind checks that ErrRepartitioned matches ErrBehind, and not the
// other way round.
func TestRepartitionedIsBehind(t *testing.T) {
	if !errors.Is(kv.ErrRepartitioned, kv.ErrBehind) || errors.Is(kv.ErrBehind, kv.ErrRepartitioned) {
		t.Error("want ErrRepartitioned to match ErrBehind, and not the reverse")
	}
}
