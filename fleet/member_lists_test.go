package fleet

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// fakeMember has nodes, and answers to lists that are too long with an error.
type fakeMember struct {
	nodes   []corev1.Node
	longest int // nodes in an answer
	endless bool
	asked   []metav1.ListOptions
	watches []*watch.FakeWatcher
}

func (f *fakeMember) listWatch() *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
			f.asked = append(f.asked, o)
			at, _ := strconv.Atoi(o.Continue)
			end := min(at+int(o.Limit), len(f.nodes))
			if end-at > f.longest {
				return nil, fmt.Errorf("read: %w", AnswerError{"too long"})
			}
			out := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: f.nodes[at:end]}
			if end < len(f.nodes) {
				out.Continue, out.RemainingItemCount = strconv.Itoa(end), ptr.To(int64(len(f.nodes)-end))
			}
			if f.endless {
				out.Continue = "0"
			}
			return out, nil
		},
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			w := watch.NewFakeWithChanSize(100, false)
			f.watches = append(f.watches, w)
			return w, nil
		},
	}
}

func nodesOf(n int) (out []corev1.Node) {
	for i := range n {
		out = append(out, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), Labels: map[string]string{"even": fmt.Sprint(i%2 == 0)}}})
	}
	return out
}

func even(o metav1.Object) bool { return o.GetLabels()["even"] == "true" }

// TestListsArePaged: a list is read in pages that a member can answer, also where the caller asks for all of a cache.
func TestListsArePaged(t *testing.T) {
	f := &fakeMember{nodes: nodesOf(1300), longest: 100}
	slim := func(o runtime.Object) runtime.Object {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: o.(*corev1.Node).Name}}
	}
	list, err := ListBounds{Max: 650, Keep: even, Slim: slim}.Bound(f.listWatch()).ListWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "0", ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	if err != nil {
		t.Fatal(err)
	}
	got := list.(*corev1.NodeList)
	if len(got.Items) != 650 || got.Items[649].Name != "n1298" || got.Items[0].Labels != nil || got.Continue != "" || got.RemainingItemCount != nil || got.ResourceVersion != "7" {
		t.Errorf("%d nodes, %+v", len(got.Items), got.ListMeta)
	}
	for i, o := range f.asked {
		if o.ResourceVersion != "" || o.ResourceVersionMatch != "" || i > 0 && o.Limit != 62 {
			t.Fatalf("request %d: %+v", i, o)
		}
	}
}

// TestListsAreBounded: a list with too many objects, with objects that are too long, with pages that are too long, or
// without an end is an error.
func TestListsAreBounded(t *testing.T) {
	long := nodesOf(3)
	long[1].Labels["k"] = strings.Repeat("x", 2000)
	for name, tt := range map[string]struct {
		member fakeMember
		bounds ListBounds
		words  string
	}{
		"too many":        {fakeMember{nodes: nodesOf(11), longest: 500}, ListBounds{Max: 10}, "more than 10 objects"},
		"too long":        {fakeMember{nodes: long, longest: 500}, ListBounds{Max: 10, Bytes: 1000, BytesEach: 100}, "longer than 1200 bytes"},
		"a page":          {fakeMember{nodes: nodesOf(1), longest: 0}, ListBounds{Max: 10}, "too long"},
		"without an end":  {fakeMember{nodes: nodesOf(1), longest: 500, endless: true}, ListBounds{Max: 10}, "does not end"},
		"within them all": {fakeMember{nodes: nodesOf(10), longest: 500}, ListBounds{Max: 10, Bytes: 1000}, ""},
	} {
		_, err := tt.bounds.Bound(tt.member.listWatch()).ListWithContext(t.Context(), metav1.ListOptions{})
		answer := AnswerError{}
		if tt.words == "" && err != nil || tt.words != "" && (!errors.As(err, &answer) || !strings.Contains(err.Error(), tt.words)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWatchesAreBounded: events of objects that the cache does not keep are dropped, and more objects than it may have end
// the watch, also if they come with several watches.
func TestWatchesAreBounded(t *testing.T) {
	f := &fakeMember{}
	bounded := ListBounds{Max: 3, Keep: even}.Bound(f.listWatch())
	nodes := nodesOf(20)
	start := func(o metav1.ListOptions) watch.Interface {
		w, err := bounded.WatchWithContext(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
		return w
	}
	expect := func(w watch.Interface, want ...string) {
		t.Helper()
		for _, one := range want {
			e := <-w.ResultChan()
			got := string(e.Type)
			if n, is := e.Object.(*corev1.Node); is {
				got += " " + n.Name
			}
			if got != one {
				t.Errorf("%s (%+v), want %s", got, e.Object, one)
			}
		}
	}
	w := start(metav1.ListOptions{SendInitialEvents: ptr.To(true)})
	for i := range 5 {
		f.watches[0].Add(&nodes[i])
	}
	odd := nodes[0].DeepCopy()
	odd.Labels["even"] = "false"
	f.watches[0].Modify(odd)       // leaves the cache
	f.watches[0].Modify(&nodes[1]) // was never in it
	f.watches[0].Delete(&nodes[2])
	expect(w, "ADDED n0", "ADDED n2", "ADDED n4", "DELETED n0", "DELETED n2")
	w = start(metav1.ListOptions{})
	f.watches[1].Add(&nodes[6])
	f.watches[1].Delete(&nodes[18]) // is not in the cache, and makes no room
	f.watches[1].Modify(&nodes[8])
	f.watches[1].Add(&nodes[10])
	expect(w, "ADDED n6", "DELETED n18", "MODIFIED n8", "ERROR")
	w = start(metav1.ListOptions{SendInitialEvents: ptr.To(true)}) // all again
	f.watches[2].Add(&nodes[10])
	expect(w, "ADDED n10")
}

// TestSizesOfUntypedObjects: the size of an object without a Go type counts, too.
func TestSizesOfUntypedObjects(t *testing.T) {
	u := &unstructured.Unstructured{Object: map[string]any{"a": []any{strings.Repeat("x", 100), int64(1)}, "b": map[string]any{"key": true}}}
	if n := sizeOf(u); n < 100 || n > 400 {
		t.Errorf("size %d", n)
	}
}
