package tenancy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/kv"
)

// limitedBy returns a Workspace with limits; negative ones are left out.
func limitedBy(name string, objects, bytes, workspaces int64) *v1alpha1.Workspace {
	limits := &v1alpha1.WorkspaceLimits{}
	if objects >= 0 {
		limits.Objects = &objects
	}
	if bytes >= 0 {
		limits.Bytes = resource.NewQuantity(bytes, resource.BinarySI)
	}
	if workspaces >= 0 {
		limits.Workspaces = &workspaces
	}
	return &v1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.WorkspaceSpec{Limits: limits}}
}

func TestBudget(t *testing.T) {
	for _, c := range []struct {
		of   *v1alpha1.Workspace
		want kv.Usage
	}{
		{&v1alpha1.Workspace{}, kv.Usage{Units: 1}},
		{limitedBy("a", 100, 1<<20, 2), kv.Usage{Keys: 100, Bytes: 1 << 20, Units: 3}},
		{limitedBy("a", 0, -1, 0), kv.Usage{Units: 1}},
		{limitedBy("a", math.MaxInt64, math.MaxInt64, math.MaxInt64), kv.Usage{Keys: kv.MaxReserved, Bytes: kv.MaxReserved, Units: kv.MaxReserved}},
	} {
		if got := Budget(c.of); got != c.want || kv.Reservation(kv.EncodeReservation(got)) != got {
			t.Errorf("%+v: %+v, want %+v", c.of.Spec.Limits, got, c.want)
		}
	}
	stored := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"limits": map[string]any{"objects": int64(7), "bytes": "1Ki", "workspaces": int64(1)}}}}
	if got, err := BudgetOf(stored); err != nil || got != (kv.Usage{Keys: 7, Bytes: 1024, Units: 2}) {
		t.Error(got, err)
	}
	for what, limits := range map[string]any{"a string": "1", "a number of bytes that is none": map[string]any{"bytes": "x"}} {
		wrong := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"limits": limits}}}
		if got, err := BudgetOf(wrong); err == nil {
			t.Errorf("%s: %+v", what, got)
		}
	}
	if _, err := BudgetOf(&v1alpha1.WorkspaceList{}); err == nil {
		t.Error("another type has a budget")
	}
}

func TestCheckBudget(t *testing.T) {
	parent := Limits(limitedBy("", 100, -1, 3))
	none, both := kv.Limits{}, Limits(limitedBy("", 5, -1, 0))
	if err := CheckBudget("team", parent, kv.Usage{}, nil, both); err != nil {
		t.Error(err)
	}
	if err := CheckBudget("team", none, kv.Usage{}, nil, none); err != nil {
		t.Error(err)
	}
	if err := CheckBudget("team", parent, kv.Usage{}, &none, none); err != nil {
		t.Errorf("an update of a workspace that lacks them: %v", err)
	}
	err := CheckBudget("team", parent, kv.Usage{Keys: 40}, &both, none)
	if err == nil || !strings.Contains(err.Error(), `spec.limits.objects is missing: workspace "team" has a limit of objects`) || !strings.Contains(err.Error(), "60 of 100 remain") {
		t.Errorf("removing them: %v", err)
	}
	err = CheckBudget("team", parent, kv.Usage{Units: 9}, nil, Limits(limitedBy("", 5, -1, -1)))
	if err == nil || !strings.Contains(err.Error(), "spec.limits.workspaces is missing") || !strings.Contains(err.Error(), "0 of 3 remain") {
		t.Errorf("without workspaces: %v", err)
	}
}

func TestCheckChildren(t *testing.T) {
	children := []*v1alpha1.Workspace{limitedBy("e", -1, -1, -1), limitedBy("d", 1, -1, 1), limitedBy("c", -1, 1, 1), {ObjectMeta: metav1.ObjectMeta{Name: "b"}}, {ObjectMeta: metav1.ObjectMeta{Name: "a"}}}
	is := Limits(limitedBy("", 10, -1, -1))
	if err := CheckChildren("team", is, is, children); err != nil {
		t.Errorf("without a new limit: %v", err)
	}
	if err := CheckChildren("team", kv.Limits{}, is, children[1:2]); err != nil {
		t.Error(err)
	}
	err := CheckChildren("team", kv.Limits{}, is, children)
	if want := "workspaces in team lack spec.limits.objects, which they would take from its limits: a, b, c and 1 more: set"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestObeyed(t *testing.T) {
	got := Obeyed(Limits(limitedBy("", 5, -1, -1)), Limits(limitedBy("", 1, 1, -1)))
	if *got.Keys != 5 || got.Bytes == nil || *got.Bytes != 0 || got.Units != nil {
		t.Errorf("%+v", got)
	}
}

func TestStoredLimits(t *testing.T) {
	w := limitedBy("a", 5, -1, 2)
	w.Generation = 3
	stored, err := EncodeLimits(w)
	if err != nil || AreStale(stored, w) {
		t.Errorf("%s, %v", stored, err)
	}
	if l := kv.StoredLimits(stored); *l.Keys != 5 || l.Bytes != nil || *l.Units != 2 {
		t.Errorf("%s: %+v", stored, l)
	}
	w.Generation = 4
	if !AreStale(stored, w) || !AreStale([]byte("broken"), w) {
		t.Error("former limits are not stale")
	}
}

// budgets are a parent with children, as the rules of DESIGN.md keep them: the limits that a stale server still obeys are included.
type budgets struct {
	limit    int64
	own      int64
	children [3]struct{ limit, obeyed, used, reserved int64 }
}

func (b *budgets) taken() (sum int64) {
	sum = b.own
	for _, c := range b.children {
		sum += c.reserved
	}
	return sum
}

// TestBudgetsAreNeverExceeded makes random steps of users and servers, in any order, also with servers that are late: the objects of parent and
// children together never exceed the limit of the parent.
func TestBudgetsAreNeverExceeded(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 2))
		b := &budgets{limit: 100}
		for step := range 400 {
			c := &b.children[random.IntN(3)]
			switch random.IntN(6) {
			case 0: // an object in the parent
				if b.taken()+1 <= b.limit {
					b.own++
				}
			case 1: // an object in the child, by a server that may be late
				if c.used+1 <= c.obeyed {
					c.used++
				}
			case 2:
				c.used = random.Int64N(c.used + 1)
			case 3: // other limits: the part grows in the same commit, and never shrinks
				limit := random.Int64N(60)
				reserved := max(c.reserved, limit)
				if b.taken()-c.reserved+reserved <= b.limit {
					c.limit, c.reserved = limit, reserved
					c.obeyed = max(c.obeyed, limit) // some server obeys the former ones, if they are higher
				}
			case 4: // the limits are stored in the child's keyspace, and then the part is settled
				c.obeyed = c.limit
				if random.IntN(2) == 0 { // killed in between
					break
				}
				lowered := Lowered(kv.Usage{Keys: c.reserved}, kv.Usage{Keys: c.limit}, kv.Usage{Keys: c.used})
				c.reserved = lowered.Keys
			case 5:
				b.own = random.Int64N(b.own + 1)
			}
			total := b.own
			for _, c := range b.children {
				total += c.used
				if c.reserved < c.obeyed || c.reserved < c.used {
					t.Fatalf("seed %d, step %d: a child may use more than its part: %+v", seed, step, c)
				}
			}
			if total > b.limit {
				t.Fatalf("seed %d, step %d: %s", seed, step, fmt.Sprint(b))
			}
		}
	}
}
