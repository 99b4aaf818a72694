package search

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestTables: rows with the same columns are in one table, by namespace, name and cluster.
func TestTables(t *testing.T) {
	columns := func(names ...string) (out []metav1.TableColumnDefinition) {
		for _, name := range names {
			wide := strings.HasSuffix(name, "+")
			out = append(out, metav1.TableColumnDefinition{Name: strings.TrimSuffix(name, "+"), Priority: map[bool]int32{true: 1}[wide]})
		}
		return out
	}
	pod, other := schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Pod"}
	found := []Found{
		{Cluster: "a", Kind: pod, Namespaced: true, Columns: columns("Name", "Node+", "Age"), Rows: []Row{{"a", "z", "p", []any{"p", "n", "1s"}}, {"a", "y", "q", []any{"q", "n", "2s"}}}},
		{Cluster: "b", Kind: pod, Namespaced: true, Columns: columns("Name", "Age"), Rows: []Row{{"b", "y", "q", []any{"q", "3s"}}}},
		{Cluster: "c", Kind: pod, Err: errors.New("it did not answer")},
		{Cluster: "d", Kind: pod, Columns: columns("Name")},
		{Cluster: "e", Kind: other, Columns: columns("Name", "Age"), Rows: []Row{{"e", "", "r", []any{"r"}}}},
	}
	text := func(tables []Table) (out []string) {
		for _, table := range tables {
			for _, row := range table.Rows {
				out = append(out, fmt.Sprintf("%s%v%v", table.Kind.Group, table.Columns, row))
			}
		}
		return out
	}
	for wide, want := range map[bool]string{
		false: "[Name Age]{a y q [q 2s]} [Name Age]{b y q [q 3s]} [Name Age]{a z p [p 1s]} example.com[Name Age]{e  r [r <nil>]}",
		true:  "[Name Node Age]{a y q [q n 2s]} [Name Node Age]{a z p [p n 1s]} [Name Age]{b y q [q 3s]} example.com[Name Age]{e  r [r <nil>]}",
	} {
		if got := strings.Join(text(Tables(found, wide)), " "); got != want {
			t.Errorf("wide %v:\n%s, want\n%s", wide, got, want)
		}
	}
}

// TestPlain: an error is one short line without the name of the cluster.
func TestPlain(t *testing.T) {
	for _, tt := range []struct{ err, want string }{
		{"cluster east did not answer: x\nmore", "did not answer: x"},
		{strings.Repeat("é", 1000), strings.Repeat("é", 250) + "…"},
	} {
		if got := plain(t.Context(), "east", &url.Error{Op: "Get", URL: "https://192.0.2.1", Err: errors.New(tt.err)}).Error(); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
	if err := plain(t.Context(), "east", ErrNoKind); !errors.Is(err, ErrNoKind) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("it did not answer within 2s"))
	if err := plain(ctx, "east", errors.New("context deadline exceeded")); err.Error() != "it did not answer within 2s" {
		t.Errorf("%v", err)
	}
}
