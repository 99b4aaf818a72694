package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	infra "github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// rootOnly are the groups that only the root serves, with what a workspace lacks without them.
var rootOnly = map[string]string{fleet.Group: "clusters, policies or placement", infra.Group: "plans, applies or providers"}

// explainRootOnly is a transport that replaces the 404 of a workspace for a group that only the root serves by an error with the remedy.
// All clients of a command use it, so each command has the same message.
type explainRootOnly struct {
	http.RoundTripper
	// workspace is the path of the workspace.
	workspace string
}

// RoundTrip implements http.RoundTripper.
func (t explainRootOnly) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(r)
	// An object or a workspace that does not exist is answered with a Status, in JSON.
	if err != nil || resp.StatusCode != http.StatusNotFound || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain") {
		return resp, err
	}
	_, below, _ := strings.Cut(r.URL.Path, "/clusters/"+t.workspace+"/apis/")
	group, _, _ := strings.Cut(below, "/")
	lacks, is := rootOnly[group]
	if !is {
		return resp, nil
	}
	// Not 404: a command would report that the object does not exist, or wait for it.
	status := metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonBadRequest,
		Code: http.StatusBadRequest, Message: fmt.Sprintf("workspace %s has no %s: use -w root", t.workspace, lacks)}
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
