package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	fleet "github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	infra "github.com/atoll-dev/atoll/api/infra/v1alpha1"
	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

// rootOnly are the groups that workspaces do not serve, or not completely, with what a workspace lacks without them.
var rootOnly = map[string]string{fleet.Group: "clusters, policies or placement", infra.Group: "plans, applies or providers"}

// explainRootOnly is a transport that replaces the 404 of a workspace for what only the root serves by an error with the remedy.
// All clients of a command use it, so each command has the same message.
type explainRootOnly struct {
	http.RoundTripper
	// workspace is the path of the workspace.
	workspace string
}

// RoundTrip implements http.RoundTripper.
func (t explainRootOnly) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(r)
	if err != nil || resp.StatusCode != http.StatusNotFound {
		return resp, err
	}
	_, below, _ := strings.Cut(r.URL.Path, "/clusters/"+t.workspace+"/apis/")
	refused, err := notInWorkspaces(resp)
	if err != nil {
		return nil, err
	}
	// An object or a workspace that does not exist is answered with a Status, in JSON. A tree has no other 404 for a list.
	message := t.explain(strings.Split(below, "/"), refused != "" || isTree(t.workspace) || strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain"))
	if message == "" {
		message = refused
	}
	if message == "" {
		return resp, nil
	}
	// Not 404: a command would report that the object does not exist, or wait for it.
	status := metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonBadRequest,
		Code: http.StatusBadRequest, Message: message}
	body, err := json.Marshal(status)
	if err != nil {
		return resp, nil
	}
	_ = resp.Body.Close()
	out := *resp
	out.StatusCode, out.Status = http.StatusBadRequest, http.StatusText(http.StatusBadRequest)
	out.Header = http.Header{"Content-Type": {"application/json"}}
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return &out, nil
}

// maxStatus bounds the part of an answer that is read to explain it.
const maxStatus = 64 << 10

// notInWorkspaces returns the message of a Status about a part of the API that workspaces do not have; "" for any other answer. The body can be read again
// afterwards.
func notInWorkspaces(resp *http.Response) (string, error) {
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		return "", nil
	}
	begin, err := io.ReadAll(io.LimitReader(resp.Body, maxStatus))
	if err != nil {
		return "", err
	}
	resp.Body = restoredBody{io.MultiReader(bytes.NewReader(begin), resp.Body), resp.Body}
	var status metav1.Status
	if json.Unmarshal(begin, &status) != nil || status.Details == nil {
		return "", nil
	}
	if !slices.ContainsFunc(status.Details.Causes, func(c metav1.StatusCause) bool { return c.Type == tenancy.NotInWorkspaces }) {
		return "", nil
	}
	return status.Message, nil
}

// restoredBody is a body that begins with a part that was read before.
type restoredBody struct {
	io.Reader
	io.Closer
}

// explain returns why a path below /apis/ is 404, and the remedy; "" if that is not known. unserved is set if no such resource is served.
func (t explainRootOnly) explain(path []string, unserved bool) string {
	group := path[0]
	lacks, is := rootOnly[group]
	switch {
	case group == fleet.Group && len(path) > 4 && path[2] == fleet.ClusterResource.Resource && path[4] == "proxy":
		return unreachedClusters(t.workspace)
	case !is || !unserved:
		return ""
	}
	if i := slices.IndexFunc(path, isRootResource); group == fleet.Group && i >= 0 {
		lacks = path[i]
	}
	return fmt.Sprintf("workspace %s has no %s: use -w root", t.workspace, lacks)
}

// isRootResource reports whether a part of a path is a resource of the fleet that only the root has.
func isRootResource(part string) bool {
	return slices.ContainsFunc(fleet.RootResources, func(r schema.GroupVersionResource) bool { return r.Resource == part })
}

// unreachedClusters is the message for commands that read the clusters of a workspace through Atoll.
func unreachedClusters(workspace string) string {
	return fmt.Sprintf("the clusters of workspace %s are not reached through Atoll: use kubectl with a kubeconfig of the cluster", workspace)
}

// needsRoot returns an error for a command that needs something that no workspace has, if the target is a workspace or a tree.
func (t *target) needsRoot(what string) error {
	config, err := t.config()
	if err != nil {
		return err
	}
	if _, path := splitWorkspaceURL(config.Host); path != "" {
		return fmt.Errorf("workspace %s has no %s: use -w root", path, what)
	}
	return nil
}

// workspaceFlag is the flag -w of the commands that have it.
const workspaceFlag = "workspace"

// suggested are the commands that messages suggest.
var suggested = regexp.MustCompile("`(?:kubectl )?atoll [^`]+`")

// inSameWorkspace adds the flag -w that a command was given to the commands that a message suggests. Without it, they would act in the workspace of
// the kubeconfig's context, which may have a cluster or an object of the same name.
func inSameWorkspace(cmd *cobra.Command, message string) string {
	path := givenWorkspace(cmd)
	if path == "" {
		return message
	}
	if without := suggested.ReplaceAllLiteralString(message, ""); strings.Contains(without, "`kubectl ") {
		message = strings.TrimRight(message, "\n") + "\nFor kubectl in this workspace, run `atoll workspace use " + shellWord(path) + "` first"
	}
	return suggested.ReplaceAllStringFunc(message, func(quoted string) string {
		return "`" + commandInWorkspace(cmd, strings.Trim(quoted, "`")) + "`"
	})
}

// commandInWorkspace adds the flag -w that cmd was given to another command line, if that has the flag and lacks it.
func commandInWorkspace(cmd *cobra.Command, line string) string {
	path := givenWorkspace(cmd)
	_, args, _ := strings.Cut(line, "atoll ")
	words := strings.Fields(args)
	other, _, err := cmd.Root().Find(words)
	if path == "" || err != nil || other.Flags().Lookup(workspaceFlag) == nil || strings.HasPrefix(args, "workspace ") || slices.ContainsFunc(words, isWorkspaceFlag) {
		return line
	}
	return line + " -w " + shellWord(path)
}

// givenWorkspace returns the flag -w of a command; "" if it was not given, or the command has none.
func givenWorkspace(cmd *cobra.Command) string {
	if flag := cmd.Flags().Lookup(workspaceFlag); flag != nil {
		return flag.Value.String()
	}
	return ""
}

// isWorkspaceFlag reports whether a word of a command line is the flag -w.
func isWorkspaceFlag(word string) bool {
	return word == "-w" || word == "--"+workspaceFlag || strings.HasPrefix(word, "--"+workspaceFlag+"=")
}
