package volumes

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// policy returns a policy with a name, for some classes. Policies are created in the order of their names.
func policy(name string, mode v1alpha1.VolumeMode, classes ...string) *v1alpha1.VolumePolicy {
	at := time.Date(2026, 1, 1, 0, int(name[0]), 0, 0, time.UTC)
	return &v1alpha1.VolumePolicy{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(at)},
		Spec: v1alpha1.VolumePolicySpec{StorageClasses: classes, Mode: mode}}
}

// TestOlderPolicyApplies: a policy that names a class precedes one for all, and of equals the older one.
func TestOlderPolicyApplies(t *testing.T) {
	all := []*v1alpha1.VolumePolicy{policy("d", v1alpha1.VolumesNone), policy("c", v1alpha1.VolumesShared, "*"),
		policy("b", v1alpha1.VolumesNone, "nfs", "fast"), policy("a", v1alpha1.VolumesShared, "nfs"), policy("e", v1alpha1.VolumesShared, "fast", "slow"),
		policy("f", "Later", "odd")}
	p := Compile(all)
	for class, want := range map[string]string{"nfs": "a Shared", "fast": "b None", "slow": "e Shared", "other": "c Shared", "": "c Shared", "odd": "f None"} {
		if got := p.For(class).Name + " " + string(p.ModeOf(class)); got != want {
			t.Errorf("class %q: %s, want %s", class, got, want)
		}
	}
	for i, want := range []string{"[{* c}] true", "[] false", "[{nfs a}] false", "[] false", "[{fast b}] false", "[] false"} {
		overruled, whole := p.Overruled(all[i])
		if got := fmt.Sprint(overruled, " ", whole); got != want {
			t.Errorf("%s: overruled %s, want %s", all[i].Name, got, want)
		}
	}
	var none *Policies
	if none.ModeOf("nfs") != v1alpha1.VolumesNone || none.For("") != nil {
		t.Error("without policies, classes have another mode than None")
	}
}

func TestJudge(t *testing.T) {
	const pod = `{spec: {template: {spec: {containers: [{name: c}], volumes: [%s]}}}}`
	mounts := func(volumes string) string { return fmt.Sprintf(pod, volumes) }
	claims := map[string]string{"nfs": `{spec: {storageClassName: nfs}}`, "fast": `{spec: {storageClassName: fast}}`, "unclassed": `{spec: {}}`,
		"old": `{metadata: {annotations: {volume.beta.kubernetes.io/storage-class: fast}}, spec: {storageClassName: nfs}}`}
	policies := Compile([]*v1alpha1.VolumePolicy{policy("a", v1alpha1.VolumesShared, "nfs")})
	for name, tt := range map[string]struct{ object, want string }{
		"no volumes":           {mounts(``), "moves"},
		"ephemeral":            {mounts(`{name: v, ephemeral: {volumeClaimTemplate: {spec: {storageClassName: fast}}}}, {name: w, emptyDir: {}}`), "moves"},
		"a claim":              {mounts(`{name: v, persistentVolumeClaim: {claimName: fast}}`), "stays: StorageClass fast, mounted"},
		"the same claim twice": {mounts(`{name: v, persistentVolumeClaim: {claimName: nfs}}, {name: w, persistentVolumeClaim: {claimName: nfs}}`), "moves, shared"},
		"the strictest":        {mounts(`{name: v, persistentVolumeClaim: {claimName: nfs}}, {name: w, persistentVolumeClaim: {claimName: fast}}`), "stays: StorageClass fast, mounted"},
		"by annotation":        {mounts(`{name: v, persistentVolumeClaim: {claimName: old}}`), "stays: StorageClass fast, mounted"},
		"without a class":      {mounts(`{name: v, persistentVolumeClaim: {claimName: unclassed}}`), "stays: no StorageClass, mounted"},
		"not here":             {mounts(`{name: v, persistentVolumeClaim: {claimName: elsewhere}}, {name: w, persistentVolumeClaim: {claimName: nfs}}`), "moves"},
		"templates":            {`{spec: {volumeClaimTemplates: [{metadata: {name: v}, spec: {storageClassName: fast}}, {metadata: {name: w}, spec: {}}]}}`, "stays: StorageClass fast or none, templates"},
		"shared templates":     {`{spec: {volumeClaimTemplates: [{metadata: {name: v}, spec: {storageClassName: nfs}}]}}`, "moves, shared"},
		"malformed":            {`{spec: {volumeClaimTemplates: [1, {metadata: 2}], template: {spec: {volumes: {}}}}}`, "stays: no StorageClass, templates"},
	} {
		obj := parse(t, tt.object)
		spec, _, _ := unstructured.NestedMap(obj, "spec", "template", "spec")
		found := ClaimsOf(obj, []map[string]any{spec, nil}, func(name string) (*unstructured.Unstructured, bool) {
			manifest, exists := claims[name]
			if !exists {
				return nil, false
			}
			return &unstructured.Unstructured{Object: parse(t, manifest)}, true
		})
		v := Judge(found, policies)
		got := "moves"
		if v.Shared {
			got += ", shared"
		}
		if v.Stays {
			got = "stays: " + v.Text()
		}
		if v.Templates {
			got += ", templates"
		}
		if v.Mounted {
			got += ", mounted"
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// TestReplicationOfClaims: claims of a class in mode Replicated go along, with what their policy says.
func TestReplicationOfClaims(t *testing.T) {
	p := policy("copies", v1alpha1.VolumesReplicated)
	p.Spec.StorageClasses, p.Spec.Replication = []string{"fast"}, &v1alpha1.VolumeReplication{}
	all := Compile([]*v1alpha1.VolumePolicy{p})
	v := Judge([]Claim{{Name: "data", Class: "fast", Template: true}}, all)
	if v.Stays || len(v.Carried) != 1 || v.Replication("data-db-2", "db") != p.Spec.Replication || v.Replication("logs-db-2", "db") != nil || v.Replication("data-db-x", "db") != nil {
		t.Errorf("%+v", v)
	}
	v = Judge([]Claim{{Name: "files", Class: "fast"}}, all)
	if v.Stays || !v.CarriesMounted() || v.Replication("files", "db") != p.Spec.Replication || v.Replication("files-db-0", "db") != nil {
		t.Errorf("mounted by name: %+v", v)
	}
}

// TestClaimsThatGoAlong: the names of the claims of one replica, and of replicas that share some.
func TestClaimsThatGoAlong(t *testing.T) {
	p := policy("disks", v1alpha1.VolumesReattach)
	p.Spec.StorageClasses = []string{"fast"}
	claims := []Claim{{Name: "data", Class: "fast", Template: true}, {Name: "files", Class: "fast"}, {Name: "unknown", Unknown: true}}
	v := Judge(claims, Compile([]*v1alpha1.VolumePolicy{p}))
	if got := v.ClaimsOfReplica("db", 5); !slices.Equal(got, []string{"data-db-5"}) {
		t.Errorf("of one replica: %v", got)
	}
	if got := v.ClaimsOfAll("db", 5, 2); !slices.Equal(got, []string{"files", "data-db-5", "data-db-6"}) || !v.Carries("files") || v.Carries("data") {
		t.Errorf("of all: %v", got)
	}
	v = Judge(append(claims, Claim{Name: "scratch", Class: "slow"}), Compile([]*v1alpha1.VolumePolicy{p}))
	if !v.Stays || len(v.Carried) > 0 || !slices.Equal(v.Classes, []string{"slow"}) {
		t.Errorf("with a claim that stays: %+v", v)
	}
}

// TestRemedy: the message names the class, and the policy that has to change.
func TestRemedy(t *testing.T) {
	for _, tt := range []struct {
		class string
		of    []*v1alpha1.VolumePolicy
		want  string
	}{
		{"fast", nil, "create a VolumePolicy for fast with mode Shared; if a CSI driver reaches the same storage from every cluster, use mode Reattach."},
		{"", nil, `create a VolumePolicy for all classes ("*") with mode Shared; `},
		{"fast", []*v1alpha1.VolumePolicy{policy("a", v1alpha1.VolumesNone)}, "change VolumePolicy a, which selects fast, to mode Shared; "},
	} {
		v := Judge([]Claim{{Name: "data", Class: tt.class, Template: true}}, Compile(tt.of))
		if got := v.Remedy(); !strings.Contains(got, tt.want) {
			t.Errorf("class %q: %s, want %s", tt.class, got, tt.want)
		}
	}
}

func parse(t *testing.T, manifest string) (out map[string]any) {
	t.Helper()
	parseInto(t, manifest, &out)
	return out
}

func parseInto(t *testing.T, manifest string, out any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(manifest), out); err != nil {
		t.Fatal(err)
	}
}

// shares reads "east 0-2, west 3-3, south 0, north": ranges of ordinals, counts, and the whole.
func shares(t *testing.T, text string) (out []v1alpha1.ClusterShare) {
	t.Helper()
	for part := range strings.SplitSeq(text, ", ") {
		if part == "" {
			continue
		}
		name, of, counted := strings.Cut(part, " ")
		s := v1alpha1.ClusterShare{Name: name}
		var first, last, count int32
		if n, _ := fmt.Sscanf(of, "%d-%d", &first, &last); n == 2 {
			count = last - first + 1
			s.Replicas, s.OrdinalStart = &count, &first
		} else if counted {
			if _, err := fmt.Sscanf(of, "%d", &count); err != nil {
				t.Fatalf("%s: %v", part, err)
			}
			s.Replicas = &count
		}
		out = append(out, s)
	}
	return out
}

func TestMoves(t *testing.T) {
	templates, mounted := Verdict{Stays: true, Templates: true}, Verdict{Stays: true, Mounted: true}
	for _, tt := range []struct {
		of            Verdict
		before, after string
		running       string // further clusters that have it
		moves         bool
	}{
		{templates, "", "east", "", false},
		{templates, "east", "east", "", false},
		{templates, "east", "west", "", true},
		{templates, "east", "", "", false},
		{templates, "west", "east", "east", false}, // it has volumes there, too
		{templates, "", "west", "east", true},      // it still runs in the east
		{templates, "east, west", "west, south", "", true},
		{templates, "east, west", "west", "", false},
		{mounted, "east, west", "west, south", "south", false}, // that has it
		{templates, "east, west", "south", "", true},
		{templates, "east", "east, west", "", false},
		{templates, "east 0-2", "east 0-2, west 3-5", "", false},
		{templates, "east 0-2", "east 0-1, west 2-2", "", true},
		{templates, "east 0-2, west 3-5", "east 0-1, west 3-3", "", false},
		{templates, "east 0-2, west 3-5", "east 0-3, west 4-5", "", true},
		{templates, "east 0-2, west 3-5", "east 0-2, west 3-3, south 6-7", "", true},
		{templates, "east 0-2, west 3-5", "east 0-2, west 6-8", "", true},
		{templates, "east 0-2, west 3-5", "west 0-5", "", true},
		{templates, "east 0-2", "west 0-2", "", true},
		{templates, "east 0-2", "east 0-2, west 0", "", false},
		{templates, "east 0, west 0", "south 0", "", true}, // their volumes are kept
		{templates, "east", "east 0-1, west 2-2", "", true},
		{templates, "east", "east 0-2", "", false},
		{templates, "east 0-0, west 1-2", "east", "", true},
		{templates, "east 0-0, west 1-2", "east, west", "", true},
		{templates, "east 0-2, west 3", "east", "", true},
		{templates, "east 0-2, west 0", "east", "", true}, // west may have volumes of replicas that ended
		{templates, "east 0-2", "east, west", "", false},
		{templates, "east 0-2", "west", "", true},
		{mounted, "east 2, west 1", "east", "", false},
		{mounted, "east 2, west 1", "east, south", "", true},
		{templates, "east 2", "east 1, west 1", "", true},
		{templates, "east 2", "east 2, west 1", "", false},
		{templates, "east 3, west 1", "east 2, west 2", "", true},
		{mounted, "east 2, west 2", "east 1, west 3", "", false},
		{mounted, "east 2, west 2", "east 2, west 2, south 1", "", true},
		{mounted, "east 2", "east 2, south 0", "", false},
		{mounted, "east", "west", "", true},
		{mounted, "east", "east, west", "", false},
		{Verdict{Shared: true}, "east", "west", "", false},
	} {
		h := Holding{Shares: shares(t, tt.before), Replicas: 3}
		for _, s := range h.Shares {
			h.Clusters = append(h.Clusters, s.Name)
		}
		if tt.running != "" {
			h.Clusters = append(h.Clusters, tt.running)
		}
		if got := tt.of.Moves(&h, shares(t, tt.after)); got != tt.moves {
			t.Errorf("%s -> %s: moves %v (templates %v)", tt.before, tt.after, got, tt.of.Templates)
		}
	}
}

// TestKept: what stays moves nothing, is never more than the total if it was not, and keeps the lowest ordinals.
func TestKept(t *testing.T) {
	v := Verdict{Stays: true, Templates: true}
	for seed := range uint64(5000) {
		r := rand.New(rand.NewPCG(seed, 1))
		h := Holding{Replicas: 4}
		next := int32(r.IntN(2))
		before, byOrdinal := int32(0), map[int32]string{}
		for i := range 1 + r.IntN(4) {
			count, start := int32(r.IntN(4)), next
			s := v1alpha1.ClusterShare{Name: fmt.Sprint("c", i), Replicas: &count, OrdinalStart: &start}
			h.Shares, h.Clusters = append(h.Shares, s), append(h.Clusters, s.Name)
			for o := range count {
				byOrdinal[start+o] = s.Name
			}
			before += count
			next += count + int32(r.IntN(2))
		}
		r.Shuffle(len(h.Shares), func(i, j int) { h.Shares[i], h.Shares[j] = h.Shares[j], h.Shares[i] })
		total := int32(r.IntN(14))
		kept := h.Kept(total)
		if v.Moves(&h, kept) {
			t.Fatalf("seed %d: %v is a move", seed, kept)
		}
		sum, highest := int32(0), int32(-1)
		for _, s := range kept {
			for o := range *s.Replicas {
				if byOrdinal[*s.OrdinalStart+o] != s.Name {
					t.Fatalf("seed %d: ordinal %d is new in %s", seed, *s.OrdinalStart+o, s.Name)
				}
				delete(byOrdinal, *s.OrdinalStart+o)
				highest = max(highest, *s.OrdinalStart+o)
			}
			sum += *s.Replicas
		}
		if sum != min(before, total) {
			t.Fatalf("seed %d: %d replicas of %d and %d", seed, sum, before, total)
		}
		if slices.ContainsFunc(slices.Collect(maps.Keys(byOrdinal)), func(o int32) bool { return o < highest }) {
			t.Fatalf("seed %d: not the highest ordinals left: %v", seed, byOrdinal)
		}
	}
}

func TestEnds(t *testing.T) {
	for _, tt := range []struct {
		before, after string
		total         int32
		ends          bool
	}{
		{"east 0-2, west 3-5", "east 0-2, west 3-5", 6, false},
		{"east 0-2, west 3-5", "east 0-2, west 3-4", 6, true},
		{"east 0-2, west 3-5", "east 0-2, west 3-4", 5, false},
		{"east 0-2, west 3-5", "east 0-2, west 3-7", 8, false},
		{"east 0-2, west 3-5", "west 3-8", 6, true},
		{"east", "west", 3, true},
		{"east", "east 0-1", 3, true},
		{"east", "east 0-2", 3, false},
		{"east, west", "west", 3, false},
		{"east, west", "east 0-1, west 2-2", 3, false},
	} {
		h := Holding{Shares: shares(t, tt.before), Replicas: tt.total}
		if got := h.Ends(shares(t, tt.after), tt.total); got != tt.ends {
			t.Errorf("%s -> %s of %d: ends %v", tt.before, tt.after, tt.total, got)
		}
	}
}
