package clusters

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// result is what one probe found.
type result struct {
	at      time.Time
	ready   bool
	reason  string
	message string
	version string
	id      string
}

// probe asks a member whether it is ready and, where that is not known or again is set,
// who it is.
func probe(ctx context.Context, member typedcorev1.CoreV1Interface, known result, again bool) result {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	out := result{version: known.version, id: known.id}
	body, err := member.RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	if err != nil {
		out.reason, out.message = classify(err, body)
		return out
	}
	if again || out.version == "" {
		said, err := versionOf(ctx, member)
		if err != nil {
			out.reason, out.message = classify(err, nil)
			return out
		}
		out.version = said.GitVersion
	}
	if out.id == "" {
		// Who cannot read it is still served: it only helps to notice that one
		// cluster joined twice.
		if ns, err := member.Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{}); err == nil {
			out.id = string(ns.UID)
		}
	}
	out.ready, out.reason, out.message = true, v1alpha1.ReasonClusterReady, "the cluster answers and is ready"
	return out
}

func versionOf(ctx context.Context, member typedcorev1.CoreV1Interface) (said version.Info, err error) {
	body, err := member.RESTClient().Get().AbsPath("/version").SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return said, err
	}
	if err := json.Unmarshal(body, &said); err != nil {
		return said, fmt.Errorf("read the version: %w", err)
	}
	return said, nil
}

// classify tells a cluster that says no from one that says nothing.
func classify(err error, body []byte) (reason, message string) {
	var answer apierrors.APIStatus
	switch {
	case apierrors.IsUnauthorized(err):
		return v1alpha1.ReasonInvalidKubeConfig, "the cluster does not accept the credentials in the kubeconfig (expired?): renew them with `atoll join`"
	case apierrors.IsForbidden(err):
		return v1alpha1.ReasonInvalidKubeConfig, "the identity in the kubeconfig may not read /readyz: grant it at least system:monitoring, and all that is to be placed there"
	case errors.As(err, &answer):
		const most = 200
		said := string(body)
		if said == "" {
			said = err.Error()
		}
		if len(said) > most {
			said = said[:most] + "…"
		}
		return v1alpha1.ReasonClusterNotReady, "the cluster answers that it is not ready: " + said
	case errors.Is(err, context.DeadlineExceeded):
		return v1alpha1.ReasonClusterUnreachable, fmt.Sprintf("the cluster did not answer within %s: check the network between here and its API server", probeTimeout)
	}
	return v1alpha1.ReasonClusterUnreachable, "the cluster cannot be reached: " + err.Error()
}

// health turns probes into a verdict with patience: one failure after a success
// is not a failure yet.
type health struct {
	last    result // the verdict
	probed  time.Time
	failing int
	// presumed: before the first probe, the cluster counts as ready, because it
	// was when an earlier leader last looked.
	presumed bool
}

// add takes in a probe and tells whether the verdict changed.
func (h *health) add(r result) (changed bool) {
	h.probed = r.at
	if r.ready {
		h.failing = 0
	} else {
		h.failing++
		if (h.last.ready || h.presumed) && h.failing < failures {
			return false
		}
	}
	// The wording of a network error varies with port numbers; what counts is
	// the kind of trouble.
	changed = h.last.at.IsZero() || h.last.ready != r.ready || h.last.reason != r.reason || h.last.version != r.version || h.last.id != r.id
	h.presumed = false
	if changed {
		h.last = r
	}
	return changed
}
