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

// interpretation describes how Atoll interprets one object.
type interpretation struct {
	Object string `json:"object"` // apps/v1 Deployment shop/web
	// Known is the source of the knowledge about its kind.
	Known     string `json:"known"`
	StaysHome string `json:"staysHome,omitempty"`
	// Mode is how it runs by default; empty for objects that follow those that use them.
	Mode     string `json:"mode,omitempty"`
	Replicas *int32 `json:"replicas,omitempty"`
	// Undivided is the reason why it cannot be divided.
	Undivided string `json:"undivided,omitempty"`
	// Components are its parts with their replicas: "worker 3".
	Components []string                `json:"components,omitempty"`
	Finished   bool                    `json:"finished,omitempty"`
	Needs      []string                `json:"needs,omitempty"`
	Follows    []string                `json:"follows,omitempty"`
	Clusters   []clusterInterpretation `json:"clusters,omitempty"`
	// Status is the aggregated status of the clusters.
	Status map[string]any `json:"status,omitempty"`
}

// clusterInterpretation has the object as sent to one cluster, and its status there.
type clusterInterpretation struct {
	Name     string `json:"name"`
	Replicas *int32 `json:"replicas,omitempty"`
	// Changes are the differences between the object and what is sent to the cluster,
	// without identity and status.
	Changes []string `json:"changes,omitempty"`
	Health  string   `json:"health,omitempty"`
	Message string   `json:"message,omitempty"`
}

func (s *interpretInput) interpret(given []string, answers interpret.Answers) ([]interpretation, error) {
	known, err := s.knowledge(answers)
	if err != nil {
		return nil, err
	}
	out := []interpretation{}
	for _, obj := range s.objects {
		a, err := s.interpretOne(known, obj, s.clusters(given))
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, nil
}

func (s *interpretInput) interpretOne(known interpret.Catalog, obj *unstructured.Unstructured, clusters []string) (interpretation, error) {
	k, _ := known.Find(obj.GroupVersionKind().GroupKind())
	a := interpretation{Object: objectText(obj), Known: k.Origin, StaysHome: known.StaysHome(obj), Mode: string(k.DefaultMode), Finished: k.Finished(obj)}
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
	parts, err := k.Components(obj)
	if err != nil {
		return a, err
	}
	for _, part := range parts {
		a.Components = append(a.Components, fmt.Sprintf("%s %d", part.Name, part.Replicas))
	}
	if k.Divided {
		if n, ok := k.Replicas(obj); ok {
			a.Replicas = &n
		}
		a.Undivided = k.CheckMode(obj, interpret.Divided)
	}
	if a.StaysHome != "" {
		return a, nil
	}
	return a, s.inClusters(k, obj, clusters, &a)
}

// inClusters adds what is sent to each cluster and what the clusters report.
func (s *interpretInput) inClusters(k interpret.KindInfo, obj *unstructured.Unstructured, clusters []string, a *interpretation) error {
	reports := s.reportsOf(obj)
	if k.DefaultMode == interpret.Single && len(reports) < 2 {
		clusters = only(clusters, reports)
	}
	dividing := k.DefaultMode == interpret.Divided && a.Replicas != nil
	var members []interpret.MemberStatus
	for i, name := range clusters {
		share := interpret.Share{Cluster: name, Live: reports[name]}
		if dividing {
			n, start := evenShare(*a.Replicas, len(clusters), i)
			share.Replicas, share.OrdinalStart = &n, &start
		}
		revised, err := k.Revise(obj, share)
		if err != nil {
			return err
		}
		desired, _, err := k.Retain(k.PrepareShare(revised, share), reports[name])
		if err != nil {
			return err
		}
		c := clusterInterpretation{Name: name, Replicas: share.Replicas, Changes: changes(obj, desired)}
		if report := reports[name]; report != nil {
			health, why := k.Health(report)
			c.Health, c.Message = string(health), why
			m, err := member(k, obj, report, share)
			if err != nil {
				return err
			}
			m.Health = health
			members = append(members, m)
		}
		a.Clusters = append(a.Clusters, c)
	}
	status, ok, err := k.Aggregate(obj, members)
	if ok {
		a.Status = status
	}
	return err
}

// only returns the cluster that reports a status, else the first.
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

// member returns a report in the form that the syncer and the status controller produce
// for a cluster that runs the latest version.
func member(k interpret.KindInfo, obj, report *unstructured.Unstructured, share interpret.Share) (m interpret.MemberStatus, err error) {
	m = interpret.MemberStatus{Cluster: share.Cluster, Replicas: share.Replicas, Generation: obj.GetGeneration()}
	if m.Status, err = k.CollectedStatus(report); err != nil {
		return m, err
	}
	observed, counts := k.ObservedGeneration(report)
	m.Current = !counts || observed >= report.GetGeneration()
	return m, nil
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

// identity lists the metadata fields that are specific to one cluster.
func identity() []string {
	return []string{"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"}
}

// changes returns the differences between the object and what is sent. It does not show
// values of Secrets.
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

// flatten returns the leaves of an object by their paths.
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

func printInterpretations(out io.Writer, answers []interpretation) error {
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

func (a interpretation) print(out io.Writer) error {
	fmt.Fprintf(out, "%s (%s)\n", a.Object, a.Known)
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(out, "  %-9s %s\n", name, text)
		}
	}
	line("stays", a.StaysHome)
	mode := a.Mode
	if mode == "" && a.StaysHome == "" {
		mode = "follows the objects that use it"
	}
	if a.Replicas != nil {
		mode += fmt.Sprintf(", %d replicas", *a.Replicas)
	}
	line("runs", mode)
	line("undivided", a.Undivided)
	line("parts", strings.Join(a.Components, ", "))
	if a.Finished {
		line("finished", "it has completed, and no other cluster runs it again")
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

// compareInterpretations prints where the answers differ from those in a file.
func compareInterpretations(out io.Writer, file string, answers []interpretation) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("%w: --expect requires a file written with -o yaml or -o json", err)
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
		return fmt.Errorf("%d values differ from %s: if the new values are correct, write the file again with -o yaml", differ, file)
	}
	fmt.Fprintf(out, "%d objects match the expected interpretation\n", len(answers))
	return nil
}

func textOr(in map[string]any, path string) string {
	if v, ok := in[path]; ok {
		return fmt.Sprint(v)
	}
	return "(nothing)"
}
