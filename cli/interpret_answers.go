package cli

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/fleet/interpret"
)

// answer is what is known of one object.
type answer struct {
	Object string `json:"object"` // apps/v1 Deployment shop/web
	// Known says where the knowledge of its kind is from.
	Known     string `json:"known"`
	StaysHome string `json:"staysHome,omitempty"`
	// Mode is how it runs by default; empty for what goes where its users are.
	Mode     string `json:"mode,omitempty"`
	Replicas *int32 `json:"replicas,omitempty"`
	// Undivided says why it could not be divided.
	Undivided string          `json:"undivided,omitempty"`
	Finished  bool            `json:"finished,omitempty"`
	Needs     []string        `json:"needs,omitempty"`
	Follows   []string        `json:"follows,omitempty"`
	Clusters  []clusterAnswer `json:"clusters,omitempty"`
	// Status is what the reports of the clusters become.
	Status map[string]any `json:"status,omitempty"`
}

// clusterAnswer is what one cluster gets and has.
type clusterAnswer struct {
	Name     string `json:"name"`
	Replicas *int32 `json:"replicas,omitempty"`
	// Changes are how what is sent differs from the object, identity and status
	// aside.
	Changes []string `json:"changes,omitempty"`
	Health  string   `json:"health,omitempty"`
	Message string   `json:"message,omitempty"`
}

func (s *subjects) interpret(given []string) ([]answer, error) {
	known, err := s.knowledge()
	if err != nil {
		return nil, err
	}
	out := []answer{}
	for _, obj := range s.objects {
		a, err := s.answer(known, obj, s.clusters(given))
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, nil
}

func (s *subjects) answer(known interpret.Knowledge, obj *unstructured.Unstructured, clusters []string) (answer, error) {
	k, _ := known.Find(obj.GroupVersionKind().GroupKind())
	a := answer{Object: objectText(obj), Known: k.Origin, StaysHome: known.StaysHome(obj), Mode: string(k.DefaultMode), Finished: k.Finished(obj)}
	needs, err := k.Needs(obj)
	follows, wrong := k.Follows(obj)
	if err := errors.Join(err, wrong); err != nil {
		return a, err
	}
	for _, ref := range needs {
		a.Needs = append(a.Needs, referenceText(ref))
	}
	for _, f := range follows {
		a.Follows = append(a.Follows, attachmentText(f))
	}
	if k.Divided {
		if n, ok := k.Replicas(obj); ok {
			a.Replicas = &n
		}
		a.Undivided = k.Allows(obj, interpret.Divided)
	}
	if a.StaysHome != "" {
		return a, nil
	}
	return a, s.inClusters(k, obj, clusters, &a)
}

// inClusters says what becomes of an object in clusters, and what they report.
func (s *subjects) inClusters(k interpret.Kind, obj *unstructured.Unstructured, clusters []string, a *answer) error {
	reports := s.reportsOf(obj)
	if k.DefaultMode == interpret.Single && len(reports) < 2 {
		clusters = only(clusters, reports)
	}
	dividing := k.DefaultMode == interpret.Divided && a.Replicas != nil
	var members []interpret.Member
	for i, name := range clusters {
		share := interpret.Share{Cluster: name, Live: reports[name]}
		if dividing {
			n, start := evenShare(*a.Replicas, len(clusters), i)
			share.Replicas, share.OrdinalStart = &n, &start
		}
		c := clusterAnswer{Name: name, Replicas: share.Replicas, Changes: changes(obj, k.PrepareShare(obj, share))}
		if report := reports[name]; report != nil {
			health, why := k.Health(report)
			c.Health, c.Message = string(health), why
			members = append(members, member(k, obj, report, share))
		}
		a.Clusters = append(a.Clusters, c)
	}
	status, ok, err := k.Aggregate(obj, members)
	if ok {
		a.Status = status
	}
	return err
}

// only keeps the cluster that reports, else the first.
func only(clusters []string, reports map[string]*unstructured.Unstructured) []string {
	for _, name := range clusters {
		if reports[name] != nil {
			return []string{name}
		}
	}
	return clusters[:1]
}

func evenShare(replicas int32, among, i int) (n, start int32) {
	even, surplus := replicas/int32(among), replicas%int32(among)
	n, start = even, even*int32(i)+min(surplus, int32(i))
	if int32(i) < surplus {
		n++
	}
	return n, start
}

// member is a report as the syncer and the status controller would make it of a
// cluster that runs the latest.
func member(k interpret.Kind, obj, report *unstructured.Unstructured, share interpret.Share) interpret.Member {
	m := interpret.Member{Cluster: share.Cluster, Replicas: share.Replicas, Generation: obj.GetGeneration()}
	m.Status, _, _ = unstructured.NestedMap(report.Object, "status")
	observed, counts := k.ObservedGeneration(report)
	m.Current = !counts || observed >= report.GetGeneration()
	return m
}

func objectText(obj *unstructured.Unstructured) string {
	name := obj.GetName()
	if obj.GetNamespace() != "" {
		name = obj.GetNamespace() + "/" + name
	}
	return obj.GetAPIVersion() + " " + obj.GetKind() + " " + name
}

func referenceText(ref interpret.Reference) string {
	name := ref.Name
	if ref.Namespace != "" {
		name = ref.Namespace + "/" + name
	}
	return ref.GroupKind.String() + " " + name
}

func attachmentText(a interpret.Attachment) string {
	if a.Pods == nil {
		return referenceText(a.To)
	}
	in := ""
	if a.To.Namespace != "" {
		in = " of " + a.To.Namespace
	}
	if a.Pods.Empty() {
		return "all workloads" + in
	}
	return "workloads" + in + " with pods " + a.Pods.String()
}

// identity are fields of metadata that no cluster gets from another.
func identity() []string {
	return []string{"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"}
}

// changes tells how what is sent differs from the object. Values of Secrets are not
// told.
func changes(obj, sent *unstructured.Unstructured) []string {
	from := obj.DeepCopy().Object
	delete(from, "status")
	for _, field := range identity() {
		unstructured.RemoveNestedField(from, "metadata", field)
	}
	before, after := flatten(from), flatten(sent.Object)
	var out []string
	for _, path := range slices.Sorted(maps.Keys(before)) {
		now, there := after[path]
		switch {
		case !there:
			out = append(out, "- "+path)
		case obj.GetKind() != "Secret" && !reflect.DeepEqual(before[path], now):
			out = append(out, fmt.Sprintf("~ %s: %v -> %v", path, before[path], now))
		}
	}
	for _, path := range slices.Sorted(maps.Keys(after)) {
		if _, there := before[path]; !there && !strings.Contains(path, "fleet.atoll.dev/") {
			out = append(out, fmt.Sprintf("+ %s: %v", path, after[path]))
		}
	}
	return out
}

// flatten gives the leaves of an object by their paths.
func flatten(v any) map[string]any {
	out := map[string]any{}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for key, value := range v {
				walk(strings.TrimPrefix(path+"."+key, "."), value)
			}
			if len(v) == 0 && path != "" {
				out[path] = "{}"
			}
		case []any:
			for i, value := range v {
				walk(fmt.Sprintf("%s[%d]", path, i), value)
			}
			if len(v) == 0 {
				out[path] = "[]"
			}
		case nil:
		default:
			out[path] = v
		}
	}
	walk("", v)
	return out
}

func printAnswers(out io.Writer, answers []answer) error {
	for i, a := range answers {
		if i > 0 {
			fmt.Fprintln(out)
		}
		if err := a.print(out); err != nil {
			return err
		}
	}
	return nil
}

func (a answer) print(out io.Writer) error {
	fmt.Fprintf(out, "%s (%s)\n", a.Object, a.Known)
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(out, "  %-9s %s\n", name, text)
		}
	}
	line("stays", a.StaysHome)
	mode := a.Mode
	if mode == "" && a.StaysHome == "" {
		mode = "goes where its users are, and what it goes along with"
	}
	if a.Replicas != nil {
		mode += fmt.Sprintf(", %d replicas", *a.Replicas)
	}
	line("runs", mode)
	line("undivided", a.Undivided)
	if a.Finished {
		line("finished", "it has done its work, and no other cluster begins it again")
	}
	for _, n := range a.Needs {
		line("needs", n)
	}
	for _, f := range a.Follows {
		line("follows", f)
	}
	for _, c := range a.Clusters {
		text := strings.TrimSuffix(strings.Join([]string{c.Health, c.Message}, ": "), ": ")
		if c.Replicas != nil {
			text = strings.TrimSpace(fmt.Sprintf("%d replicas %s", *c.Replicas, text))
		}
		fmt.Fprintf(out, "  in %-6s %s\n", c.Name, text)
		for _, change := range c.Changes {
			fmt.Fprintln(out, "              "+change)
		}
	}
	if a.Status == nil {
		return nil
	}
	text, err := yaml.Marshal(a.Status)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "  status")
	for _, l := range strings.Split(strings.TrimRight(string(text), "\n"), "\n") {
		fmt.Fprintln(out, "    "+l)
	}
	return nil
}

// compareAnswers tells where the answers differ from those in a file.
func compareAnswers(out io.Writer, file string, answers []answer) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("%w: --expect takes a file of answers, as -o yaml prints them", err)
	}
	var want, got any
	if data, err = yaml.YAMLToJSON(data); err == nil {
		err = json.Unmarshal(data, &want)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if data, err = json.Marshal(answers); err == nil {
		err = json.Unmarshal(data, &got)
	}
	if err != nil {
		return err
	}
	expected, found := flatten(want), flatten(got)
	paths := slices.Concat(slices.Collect(maps.Keys(expected)), slices.Collect(maps.Keys(found)))
	slices.Sort(paths)
	differ := 0
	for _, path := range slices.Compact(paths) {
		if w, g := fmt.Sprint(expected[path]), fmt.Sprint(found[path]); w != g {
			fmt.Fprintf(out, "%s\n  expected  %s\n  found     %s\n", path, textOr(expected, path), textOr(found, path))
			differ++
		}
	}
	if differ > 0 {
		return fmt.Errorf("%d answers are not as %s expects: if they are right now, write it anew with -o yaml", differ, file)
	}
	fmt.Fprintf(out, "%d objects are interpreted as expected\n", len(answers))
	return nil
}

func textOr(in map[string]any, path string) string {
	if v, ok := in[path]; ok {
		return fmt.Sprint(v)
	}
	return "(nothing)"
}
