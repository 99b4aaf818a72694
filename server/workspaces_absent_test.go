package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver/workspaces"
	"github.com/atoll-dev/atoll/server"
)

// served is one request of the walk: a verb on a resource, or on a subresource of it.
type served struct {
	schema.GroupVersion
	metav1.APIResource
	verb string
}

func (r served) String() string {
	return strings.TrimSpace(r.verb + " " + r.GroupVersion.String() + " " + r.Name)
}

// request returns the request. Those for one object are for one that does not exist, except for the Pod walk, and none changes anything.
func (r served) request() (method, path, body string) {
	path = "/apis/" + r.GroupVersion.String()
	if r.GroupVersion.Group == "" {
		path = "/api/" + r.GroupVersion.Version
	}
	if r.Namespaced {
		path += "/namespaces/default"
	}
	resource, sub, isSub := strings.Cut(r.Name, "/")
	path += "/" + resource
	object := path + "/walk"
	if isSub {
		object += "/" + sub
	}
	switch r.verb {
	case "get":
		return "GET", object, ""
	case "list":
		return "GET", path + "?limit=1", ""
	case "watch":
		return "GET", path + "?watch=1&resourceVersion=0&timeoutSeconds=60", ""
	case "create":
		if isSub {
			path = object
		}
		return "POST", path + "?dryRun=All", "{}"
	case "update":
		return "PUT", object + "?dryRun=All", "{}"
	case "patch":
		return "PATCH", object + "?dryRun=All", "{}"
	case "delete":
		return "DELETE", object + "?dryRun=All", ""
	case "deletecollection":
		return "DELETE", path + "?dryRun=All&labelSelector=no%3Dsuch", ""
	}
	return "", "", ""
}

// walkAnswer is a part of the answer to a request. Only the beginning of a watch is read.
type walkAnswer struct {
	code   int
	status metav1.Status
	text   string
}

// isServed reports whether the server has the path and the verb.
func (a walkAnswer) isServed() bool {
	return a.code != http.StatusMethodNotAllowed && (a.code != http.StatusNotFound || a.status.Details != nil && a.status.Details.Name != "" && !a.isRefused())
}

// isRefused reports whether the answer says that workspaces do not have this.
func (a walkAnswer) isRefused() bool {
	return a.code == http.StatusNotFound && a.status.Details != nil && slices.ContainsFunc(a.status.Details.Causes, func(c metav1.StatusCause) bool { return c.Type == tenancy.NotInWorkspaces })
}

func walk(t *testing.T, client *http.Client, config *rest.Config, r served) (a walkAnswer) {
	t.Helper()
	method, path, body := r.request()
	if method == "" {
		t.Fatalf("%s: the walk does not know the verb", r)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, config.Host+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", map[bool]string{true: "application/merge-patch+json", false: "application/json"}[r.verb == "patch"])
	answer, err := client.Do(request)
	if err != nil {
		t.Fatalf("%s: %v", r, err)
	}
	defer answer.Body.Close()
	a.code = answer.StatusCode
	if r.verb == "watch" && a.code == http.StatusOK {
		return a
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
	if err != nil {
		t.Fatalf("%s: %v", r, err)
	}
	a.text = string(text)
	_ = json.Unmarshal(text, &a.status) // it need not be a Status
	return a
}

// TestWorkspaceHasTheAPI: everything that discovery of the root has is served in a workspace, or refused with a Status that says what to do instead. All refusals
// are in workspaces.Absences, and in the documentation.
func TestWorkspaceHasTheAPI(t *testing.T) {
	s := ownServer(t, server.Config{})
	root, in := s.config(t), s.createWorkspace(t, "walk")
	for _, config := range []*rest.Config{root, in} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "walk"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "nginx"}}}}
		if _, err := clientOf(t, config).CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	httpClient, err := rest.HTTPClientFor(in)
	if err != nil {
		t.Fatal(err)
	}
	var lists []*metav1.APIResourceList
	eventually(t, "the root has all that workspaces do not have", func(context.Context) (err error) { // it defines some kinds after its start
		if _, lists, err = clientOf(t, root).Discovery().ServerGroupsAndResources(); err != nil {
			return err
		}
		return lacks(lists)
	})
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			absences := slices.DeleteFunc(workspaces.Absences(), func(a workspaces.Absence) bool { return !a.Covers(version.Group, r.Name) })
			for _, verb := range r.Verbs {
				r := served{version, r, verb}
				if got := walk(t, httpClient, root, r); !got.isServed() {
					t.Errorf("%s: the root answers %d %s", r, got.code, got.text)
				}
				got := walk(t, httpClient, in, r)
				switch {
				case len(absences) == 0:
					if !got.isServed() {
						t.Errorf("%s: neither served nor in workspaces.Absences: %d %s", r, got.code, got.text)
					}
				case len(absences) > 1:
					t.Errorf("%s: %d absences", r, len(absences))
				case absences[0].Refused:
					if strings.HasPrefix(r.Name, "pods/") && verb == "get" && !strings.HasSuffix(got.status.Message, absences[0].Instead) {
						t.Errorf("%s: %d %s", r, got.code, got.text)
					}
				default:
					if message := got.status.Message; !got.isRefused() || !strings.Contains(message, r.Name) || !strings.HasSuffix(message, absences[0].Reason+": "+absences[0].Instead) {
						t.Errorf("%s: %d %s", r, got.code, got.text)
					}
				}
			}
		}
	}
	checkAbsences(t)

	// Discovery of a group that workspaces lack, and a user who must not know more.
	for _, path := range []string{"/apis/apiregistration.k8s.io/v1", "/apis/metrics.k8s.io/v1beta1", "/apis/flowcontrol.apiserver.k8s.io"} {
		if code, body := get(t, in, path); code != http.StatusNotFound || !strings.Contains(body, "workspaces do not have") {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if out, err := s.kubectl(t, "", "--server="+in.Host, "get", "--raw", "/apis/apiregistration.k8s.io/v1/apiservices"); err == nil || !strings.Contains(out, "APIBinding") {
		t.Error(out, err)
	}
	if code, body := get(t, in, "/apis/example.com/v1/unknown"); code != http.StatusNotFound || strings.Contains(body, "workspaces do not have") {
		t.Errorf("a group that nothing has: %d %s", code, body)
	}
}

// lacks returns an error if the root does not have something that workspaces do not have: then it belongs in no table.
func lacks(lists []*metav1.APIResourceList) error {
	found := map[string]bool{}
	for _, list := range lists {
		group, _, _ := strings.Cut(list.GroupVersion, "/")
		if list.GroupVersion == "v1" {
			group = ""
		}
		found[group] = true
		for _, r := range list.APIResources {
			found[group+" "+r.Name] = true
		}
	}
	for _, a := range workspaces.Absences() {
		if !found[a.Group] {
			return fmt.Errorf("the root has nothing of %s", a.Row())
		}
		for _, resource := range a.Resources {
			if !found[a.Group+" "+resource] {
				return fmt.Errorf("the root does not have %s of %q", resource, a.Group)
			}
		}
	}
	return nil
}

// checkAbsences checks that the documentation has the same table.
func checkAbsences(t *testing.T) {
	t.Helper()
	page, err := os.ReadFile("../docs/workspaces.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for _, a := range workspaces.Absences() {
		rows[a.Row()] = true
		if !strings.Contains(string(page), "\n"+a.Row()+"\n") {
			t.Errorf("docs/workspaces.md lacks the row\n%s", a.Row())
		}
	}
	_, table, _ := strings.Cut(string(page), "\n"+absencesHead+"\n| --- | --- | --- |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	for line := range strings.Lines(table + "\n") {
		if line = strings.TrimSuffix(line, "\n"); line != "" && !rows[line] {
			t.Errorf("docs/workspaces.md has a row that is not in workspaces.Absences:\n%s", line)
		}
	}
	if table == "" {
		t.Errorf("docs/workspaces.md has no table %q", absencesHead)
	}
}

// absencesHead is the head of the table in the documentation.
const absencesHead = "| not in workspaces | because | instead |"
