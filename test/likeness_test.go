package test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/test/programs"
)

// likeGroup is the group of the types that are compared.
const likeGroup = "like.test.atoll.dev"

// A flow is a sequence of requests for objects of a group; the answers are recorded.
type flow struct {
	name string
	run  func(s *side)
}

// likenessFlows are all of them. Each has a namespace of its own, by its name.
func likenessFlows() []flow {
	return slices.Concat(kubectlFlows(), requestFlows(), watchFlows(), admissionFlows())
}

// TestASharedKindIsLikeALocalOne runs the same flows where the types are a member's
// own CRDs and where they are Atoll's, exposed to a member, and compares all that
// clients are told. Two members, so that all names can be the same: they differ
// in nothing else.
func TestASharedKindIsLikeALocalOne(t *testing.T) {
	f := whole(t)
	flows := likenessFlows()
	hooks := startHooks(t)
	f.prepareLikeness(t, flows, hooks)
	var mu sync.Mutex
	seen := map[string]bool{}
	t.Run("flows", func(t *testing.T) {
		for _, flow := range flows {
			t.Run(flow.name, func(t *testing.T) {
				t.Parallel()
				local := &side{t: t, f: f, hooks: hooks, cluster: "north", home: "north", namespace: likeNamespace(flow), dir: t.TempDir()}
				shared := &side{t: t, f: f, hooks: hooks, cluster: "east", home: "atoll", namespace: likeNamespace(flow), dir: t.TempDir()}
				var both sync.WaitGroup
				for _, s := range []*side{local, shared} {
					both.Go(func() { flow.run(s) })
				}
				both.Wait()
				want, got := local.transcript(), shared.transcript()
				for _, d := range differences {
					if replaced := d.shared.ReplaceAllString(got, d.local); replaced != got {
						got = replaced
						mu.Lock()
						seen[d.why] = true
						mu.Unlock()
					}
				}
				if dir := os.Getenv("ATOLL_TEST_TRANSCRIPTS"); dir != "" {
					for name, text := range map[string]string{"local": want, "shared": got} {
						if err := os.WriteFile(filepath.Join(dir, flow.name+"."+name), []byte(text), 0o600); err != nil {
							t.Error(err)
						}
					}
				}
				if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); diff != "" {
					t.Errorf("a shared kind (+) is not like a local one (-):\n%s", diff)
				}
			})
		}
	})
	if t.Failed() {
		return
	}
	for _, d := range differences {
		if !seen[d.why] {
			t.Errorf("a difference is listed that is none: %s", d.why)
		}
	}
}

// differences are what cannot be the same: what the shared side says, and what
// the local one says instead.
var differences = []struct {
	shared *regexp.Regexp
	local  string
	why    string
}{
	{regexp.MustCompile(`(< (?:Audit-Id|X-Kubernetes-Pf-\w+-Uid)), 2 times`), `$1, 1 times`, "both API servers say how they queued and recorded a request"},
	{regexp.MustCompile(`User (\\?)"east:`), `User $1"`, "Atoll knows a member's users by the member's name"},
}

func likeNamespace(f flow) string { return "like-" + f.name }

// prepareLikeness defines the types where they are to live, and opens the flows'
// namespaces.
func (f *fixture) prepareLikeness(t *testing.T, flows []flow, hooks hooks) {
	t.Helper()
	types := hooks.in(likenessTypes)
	var spaces strings.Builder
	for _, flow := range flows {
		fmt.Fprintf(&spaces, "---\n{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: {test: likeness}}}\n", likeNamespace(flow))
	}
	t.Cleanup(func() {
		ctx := context.Background()
		try := func(cluster string, args ...string) {
			if _, err := f.tryKubectl(ctx, cluster, "", append([]string{"delete", "--ignore-not-found", "--timeout=90s"}, args...)...); err != nil {
				t.Error(err)
			}
		}
		everywhere := func(do func(cluster string)) {
			var all sync.WaitGroup
			for _, c := range []string{"atoll", "east", "north"} {
				all.Go(func() { do(c) })
			}
			all.Wait()
		}
		// Webhooks first: they would refuse the rest.
		everywhere(func(c string) {
			try(c, "validatingadmissionpolicy,validatingadmissionpolicybinding,validatingwebhookconfiguration,mutatingwebhookconfiguration,"+
				"mutatingadmissionpolicy,mutatingadmissionpolicybinding", "-l", "test=likeness")
		})
		var spaces sync.WaitGroup
		defer spaces.Wait()
		spaces.Go(func() { everywhere(func(c string) { try(c, "namespace", "-l", "test=likeness") }) })
		try("atoll", "sharedapi", "likeness")
		everywhere(func(c string) {
			try(c, "clusterrole,clusterrolebinding,customresourcedefinition", "-l", "test=likeness")
		})
	})
	var all sync.WaitGroup
	for cluster, manifest := range map[string]string{
		"atoll": types + likenessShared + likenessGrant("east:alice", "get") + spaces.String(),
		"north": types + likenessGrant("alice", "get") + spaces.String(),
		"east":  likenessGrant("alice", "*") + spaces.String(),
	} {
		all.Go(func() {
			if _, err := f.tryKubectl(t.Context(), cluster, manifest, "apply", "-f", "-"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	f.kubectl(t, "atoll", "wait", "sharedapi/likeness", "--for=condition=Ready", "--timeout=90s")
	for _, c := range []string{"north", "east"} {
		eventually(t, 60*time.Second, c+" serves all of it", func(ctx context.Context) error {
			for _, resource := range []string{"gadgets", "widgets"} {
				if _, err := f.tryKubectl(ctx, c, "", "get", resource+"."+likeGroup, "-A"); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// A side is one of the two compared clients of members, with a transcript of its requests and answers.
type side struct {
	t     *testing.T
	f     *fixture
	hooks hooks
	// cluster is the member whose API server is called. home is where the types, their policies and webhooks are
	// defined.
	cluster, home string
	namespace     string
	dir           string
	log           strings.Builder
}

func (s *side) say(format string, args ...any) { fmt.Fprintf(&s.log, format+"\n", args...) }

// file writes a file that commands find by its name.
func (s *side) file(name, text string) {
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
		s.t.Error(err)
	}
}

// kubectl runs kubectl and records its output and exit code.
func (s *side) kubectl(args ...string) {
	s.say("$ kubectl %s", strings.Join(args, " "))
	answer := s.ask(args...)
	out := answer.Out
	if strings.Contains(out, `"managedFields"`) {
		out = readable([]byte(out))
	}
	s.say("%s", out)
	if said := withoutLogs(answer.Errs); said != "" {
		s.say("stderr: %s", said)
	}
	if answer.Code != 0 {
		s.say("exit %d", answer.Code)
	}
}

// ask runs kubectl in the flow's namespace and directory.
func (s *side) ask(args ...string) programs.Answer {
	answer, err := programs.Call{Program: "kubectl", Args: append(args, "-n", s.namespace), Home: s.f.dir, Kubeconfig: s.f.kubeconfig(s.cluster),
		Dir: s.dir, Env: map[string]string{"KUBE_EDITOR": "sed -i s/green/blue/"}}.Run(s.t.Context())
	if err != nil {
		s.t.Error(err)
	}
	return answer
}

// withoutLogs is what kubectl prints, without the lines that its libraries log: those say how long
// a watch lasted, which depends on the machine.
func withoutLogs(text string) string {
	return logLine.ReplaceAllString(text, "")
}

var logLine = regexp.MustCompile(`(?m)^[IWE]\d{4} .*\n?`)

// atHome changes something where the types are defined.
func (s *side) atHome(manifest string) {
	if _, err := s.f.tryKubectl(s.t.Context(), s.home, manifest, "apply", "-f", "-"); err != nil {
		s.t.Error(err)
	}
}

// eventually is like the function, for goroutines that must not end the test.
func (s *side) eventually(what string, check func(ctx context.Context) error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 60*time.Second)
	defer cancel()
	for tick := time.NewTicker(100 * time.Millisecond); ; {
		err := check(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			s.t.Errorf("%s: %s: %v", s.cluster, what, err)
			return
		case <-tick.C:
		}
	}
}

// gadgets is the path of the flow's Gadgets.
func (s *side) gadgets() string {
	return "/apis/" + likeGroup + "/v1/namespaces/" + s.namespace + "/gadgets"
}

// send sends a request, and leaves the body to the caller.
func (s *side) send(ctx context.Context, method, path, body string, headers ...string) (*http.Response, error) {
	config := s.f.rest(s.t, s.cluster)
	config.Timeout = 0
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, method, config.Host+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	return client.Do(request)
}

// request sends a request and records the whole answer, except for random parts.
func (s *side) request(method, path, body string, headers ...string) (answer []byte) {
	s.say("> %s %s %q %s", method, path, headers, body)
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	response, err := s.send(ctx, method, path, body, headers...)
	if err != nil {
		s.t.Errorf("%s: %s %s: %v", s.cluster, method, path, err)
		return nil
	}
	defer response.Body.Close()
	if answer, err = io.ReadAll(response.Body); err != nil {
		s.t.Errorf("%s: %s %s: %v", s.cluster, method, path, err)
		return nil
	}
	s.say("< %d", response.StatusCode)
	var names []string
	for name := range response.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		switch name {
		case "Date", "Content-Length":
		case "Audit-Id", "X-Kubernetes-Pf-Flowschema-Uid", "X-Kubernetes-Pf-Prioritylevel-Uid":
			s.say("< %s, %d times", name, len(response.Header[name]))
		case "Etag", "Last-Modified":
			s.say("< %s is there", name)
		default:
			s.say("< %s: %q", name, response.Header[name])
		}
	}
	s.say("%s", readable(answer))
	return answer
}

// readable returns JSON with sorted keys, or a summary of protobuf.
func readable(body []byte) string {
	if raw, ok := strings.CutPrefix(string(body), "k8s\x00"); ok {
		var envelope runtime.Unknown
		if err := envelope.Unmarshal([]byte(raw)); err != nil {
			return err.Error()
		}
		if envelope.Kind != "PartialObjectMetadataList" {
			return fmt.Sprintf("protobuf of %v", envelope.TypeMeta)
		}
		var list metav1.PartialObjectMetadataList
		if err := list.Unmarshal(envelope.Raw); err != nil {
			return err.Error()
		}
		var err error
		if body, err = json.Marshal(list); err != nil {
			return err.Error()
		}
	}
	var tree any
	if err := json.Unmarshal(body, &tree); err != nil {
		return string(body)
	}
	sortChance(tree)
	ordered, err := json.MarshalIndent(tree, "", "  ")
	if err != nil {
		return err.Error()
	}
	return string(ordered)
}

// sortChance sorts lists whose order is random. API servers list the types of a group in the order of a Go
// map, and sort field managers by the second of their last write before the name.
func sortChance(tree any) {
	switch node := tree.(type) {
	case []any:
		for _, child := range node {
			sortChance(child)
		}
	case map[string]any:
		if types, ok := node["resources"].([]any); ok {
			slices.SortFunc(types, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
		if managers, ok := node["managedFields"].([]any); ok {
			key := func(entry any) string {
				e, _ := entry.(map[string]any)
				return fmt.Sprint(e["manager"], e["operation"], e["subresource"], e["apiVersion"])
			}
			slices.SortFunc(managers, func(a, b any) int { return strings.Compare(key(a), key(b)) })
		}
		for _, child := range node {
			sortChance(child)
		}
	}
}

// chance is what differs from one object to the next whoever serves it.
var chance = []struct {
	pattern *regexp.Regexp
	as      string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| \+0000)`), "TIME"},
	{regexp.MustCompile(`("?(?:resourceVersion|RV)"?[:=] ?"?)[1-9]\d*`), "${1}REVISION"},
	{regexp.MustCompile(`(Resource Version: +)\d+`), "${1}REVISION"},
	{regexp.MustCompile(`(resource version: )\d+( \()\d+\)`), "${1}REVISION${2}REVISION)"},
	{regexp.MustCompile(`(resource version: \d+, current: )\d+`), "${1}REVISION"},
	{regexp.MustCompile(`(ResourceVersion in record \()\d+`), "${1}REVISION"},
	{regexp.MustCompile(`("continue": ")[^"]+`), "${1}TOKEN"},
	{regexp.MustCompile(`continue=[^& ]{20,}`), "continue=TOKEN"},
	{regexp.MustCompile(`\bmade-[a-z0-9]{5}\b`), "made-RANDOM"},
	{regexp.MustCompile(`\b(LIVE|MERGED)-\d+`), "$1-RANDOM"},
	{regexp.MustCompile(`https://127\.0\.0\.1:\d+`), "https://SERVER"},
	{regexp.MustCompile(`/tmp/[^ "]*/(\w+\.yaml)`), "$1"},
	{regexp.MustCompile(`([ "])(\d+[smh])+(["\s])`), "${1}AGE${3}"},
	// The width of columns depends on their content.
	{regexp.MustCompile(`(\S)  +`), "$1  "},
}

func (s *side) transcript() string {
	text := s.log.String()
	for _, c := range chance {
		text = c.pattern.ReplaceAllString(text, c.as)
	}
	return text
}
