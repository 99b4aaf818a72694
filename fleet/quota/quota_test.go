package quota_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/quota"
)

func amounts(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

func newQuota(hard ...string) *v1alpha1.FleetQuota {
	q := &v1alpha1.FleetQuota{ObjectMeta: metav1.ObjectMeta{Name: "team", Namespace: "default", Generation: 1, ResourceVersion: "1"},
		Spec: v1alpha1.FleetQuotaSpec{Hard: amounts(hard...)}}
	q.Status, _ = quota.Count(q, quota.Counted{}, time.Time{})
	return q
}

func podSpec(t *testing.T, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func named(name string) v1alpha1.QuotaObject {
	return v1alpha1.QuotaObject{Group: "apps", Kind: "Deployment", Name: name}
}

// TestUsesOf: limits count as requests, init containers run one after the other, and a component whose
// pods are not known counts by its requests.
func TestUsesOf(t *testing.T) {
	for name, tc := range map[string]struct {
		pods quota.Pods
		want map[corev1.ResourceName]string
	}{
		"requests and limits": {quota.Pods{Count: 3, Spec: podSpec(t, "{containers: [{name: a, resources: {requests: {cpu: 500m}, limits: {cpu: 1, memory: 1Gi, example.com/gpu: 2}}}]}")},
			map[corev1.ResourceName]string{"pods": "3", "cpu": "1500m", "requests.cpu": "1500m", "limits.cpu": "3", "memory": "3Gi", "limits.memory": "3Gi", "requests.example.com/gpu": "6", "example.com/gpu": "0"}},
		"an init container": {quota.Pods{Count: 1, Spec: podSpec(t, "{initContainers: [{name: i, resources: {requests: {cpu: 4}}}], containers: [{name: a, resources: {requests: {cpu: 1}}}, {name: b, resources: {requests: {cpu: 1}}}]}")},
			map[corev1.ResourceName]string{"pods": "1", "cpu": "4"}},
		"only requests": {quota.Pods{Count: 2, Requests: map[string]string{"cpu": "2"}}, map[corev1.ResourceName]string{"pods": "2", "cpu": "4"}},
		"none":          {quota.Pods{Count: 0, Spec: podSpec(t, "{containers: [{name: a}]}")}, map[corev1.ResourceName]string{"pods": "0"}},
	} {
		uses, err := quota.UsesOf([]quota.Pods{tc.pods})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for resourceName, want := range tc.want {
			if is := uses[resourceName]; is.Cmp(resource.MustParse(want)) != 0 {
				t.Errorf("%s: %s is %s, want %s", name, resourceName, is.String(), want)
			}
		}
	}
	if _, err := quota.UsesOf([]quota.Pods{{Count: 1, Spec: map[string]any{"containers": "none"}}}); err == nil {
		t.Error("a spec that is none has uses")
	}
}

func TestUnspecified(t *testing.T) {
	for text, want := range map[string]string{
		"{containers: [{name: a, resources: {requests: {cpu: 1}}}]}":                                         "container a does not specify resources.limits.memory, which is limited: set it",
		"{containers: [{name: a, resources: {limits: {cpu: 1, memory: 1Gi}}}]}":                              "",
		"{containers: [{name: a, resources: {limits: {cpu: 1, memory: 1Gi}}}], initContainers: [{name: i}]}": "container i does not specify resources.requests.cpu",
		"{resources: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 1}}, containers: [{name: a}]}":          "",
	} {
		err := quota.Unspecified([]quota.Pods{{Count: 1, Spec: podSpec(t, text)}}, amounts("requests.cpu", "9", "limits.memory", "9Gi", "requests.example.com/gpu", "1", "pods", "3"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), "does not specify") || !strings.HasPrefix(err.Error(), want[:12])) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func TestAdmit(t *testing.T) {
	q, now := newQuota("requests.cpu", "10", "pods", "100"), time.Unix(1000, 0)
	admit := func(c quota.Change) error {
		status, err := quota.Admit(q, c, now)
		if status != nil {
			q.Status = *status
		}
		return err
	}
	if err := admit(quota.Change{Object: named("a"), After: amounts("requests.cpu", "6", "pods", "6", "memory", "1Gi")}); err != nil {
		t.Fatal(err)
	}
	err := admit(quota.Change{Object: named("b"), After: amounts("requests.cpu", "5", "pods", "5")})
	if want := "exceeded FleetQuota: team, requested: requests.cpu=5, used: requests.cpu=6, limited: requests.cpu=10"; err == nil || err.Error() != want || !errors.Is(err, quota.ErrExceeded) {
		t.Errorf("%v, want %s", err, want)
	}
	// The same write again, as after a conflict, counts once.
	if err := admit(quota.Change{Object: named("a"), After: amounts("requests.cpu", "6", "pods", "6")}); err != nil {
		t.Error(err)
	}
	if used := q.Status.Used["requests.cpu"]; used.String() != "6" {
		t.Errorf("used: %s", used.String())
	}
	if free := q.Status.Free["requests.cpu"]; free.String() != "4" {
		t.Errorf("free: %s", free.String())
	}
	// What uses less is admitted even if the limit is exceeded.
	q.Spec.Hard = amounts("requests.cpu", "1", "pods", "100")
	if err := admit(quota.Change{Object: named("a"), Before: amounts("requests.cpu", "6"), After: amounts("requests.cpu", "5")}); err != nil {
		t.Error(err)
	}
	if err := admit(quota.Change{Object: named("b"), After: amounts("requests.cpu", "0", "pods", "3")}); err != nil {
		t.Errorf("another resource is exceeded: %v", err)
	}
	fresh := newQuota("pods", "1")
	fresh.Status = v1alpha1.FleetQuotaStatus{}
	if _, err := quota.Admit(fresh, quota.Change{Object: named("a"), After: amounts("pods", "1")}, now); !errors.Is(err, quota.ErrNotCounted) {
		t.Errorf("before the first count: %v", err)
	}
}

// TestExactWithConcurrentWrites runs random histories: writes are admitted and stored later, in another
// order, or never; objects are deleted; the counter sees all of it late. The stored objects never exceed
// the limit, and once the counter has seen all writes, its count equals their use.
func TestExactWithConcurrentWrites(t *testing.T) {
	for seed := range uint64(3000) {
		random := rand.New(rand.NewPCG(seed, 1))
		simulate(t, seed, random)
		if t.Failed() {
			return
		}
	}
}

type stored struct{ uses, revision int64 }

func simulate(t *testing.T, seed uint64, random *rand.Rand) {
	const limit = 20
	q, now, revision := newQuota("pods", fmt.Sprint(limit)), time.Unix(1000, 0), int64(1)
	objects, seen := map[string]stored{}, map[string]stored{} // stored, and as the counter sees them; uses -1 is deleted
	type write struct {
		name     string
		uses     int64
		old      stored
		admitted time.Time
	}
	var inFlight []write
	writeQuota := func(status v1alpha1.FleetQuotaStatus) {
		revision++
		q.Status, q.ResourceVersion = status, fmt.Sprint(revision)
	}
	usesOf := func(n int64) corev1.ResourceList {
		if n < 0 {
			return nil
		}
		return amounts("pods", fmt.Sprint(n))
	}
	count := func() {
		counted := quota.Counted{Uses: map[v1alpha1.QuotaObject]corev1.ResourceList{}, Seen: map[v1alpha1.QuotaObject]int64{}}
		for name, o := range seen {
			counted.Seen[named(name)] = o.revision
			if o.uses >= 0 {
				counted.Uses[named(name)] = usesOf(o.uses)
			}
		}
		status, _ := quota.Count(q, counted, now)
		writeQuota(status)
	}
	for range 60 {
		now = now.Add(time.Duration(random.IntN(3)) * time.Second)
		name := string(rune('a' + random.IntN(4)))
		switch random.IntN(6) {
		case 0, 1: // a request
			old, exists := objects[name]
			if !exists {
				old = stored{uses: -1}
			}
			uses := int64(random.IntN(12))
			status, err := quota.Admit(q, quota.Change{Object: named(name), Before: usesOf(old.uses), After: usesOf(uses), Revision: old.revision}, now)
			if err != nil {
				continue
			}
			if status != nil {
				writeQuota(*status)
			}
			inFlight = append(inFlight, write{name, uses, old, now})
		case 2: // one of the admitted writes is stored if its object is unchanged, or fails
			if len(inFlight) == 0 {
				continue
			}
			i := random.IntN(len(inFlight))
			w := inFlight[i]
			inFlight = append(inFlight[:i], inFlight[i+1:]...)
			is, exists := objects[w.name]
			if !exists {
				is = stored{uses: -1}
			}
			if random.IntN(4) > 0 && is.revision == w.old.revision && now.Sub(w.admitted) < 60*time.Second {
				revision++
				objects[w.name] = stored{w.uses, revision}
			}
		case 3: // deleted, or changed without using more
			if is, exists := objects[name]; exists {
				revision++
				if random.IntN(2) == 0 {
					objects[name] = stored{-1, revision}
				} else {
					objects[name] = stored{is.uses, revision}
				}
			}
		case 4: // the counter sees an object
			if is, exists := objects[name]; exists {
				seen[name] = is
			}
		case 5:
			count()
		}
		total := int64(0)
		for _, o := range objects {
			total += max(0, o.uses)
		}
		if total > limit {
			t.Fatalf("seed %d: %d are stored, the limit is %d: %+v", seed, total, limit, q.Status)
		}
	}
	total := int64(0)
	for name, o := range objects {
		seen[name] = o
		total += max(0, o.uses)
	}
	now = now.Add(quota.Abandoned)
	count()
	if used := q.Status.Used["pods"]; used.Value() != total || len(q.Status.Admitted) > 0 {
		t.Fatalf("seed %d: %d are stored, %s are counted: %+v", seed, total, used.String(), q.Status)
	}
}
