package webhooks

import (
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// The protocol's only version. Its types are those of Karmada's package pkg/apis/config/v1alpha1, as
// far as requests and responses have them.
const (
	protocolVersion = "config.karmada.io/v1alpha1"
	protocolKind    = "ResourceInterpreterContext"
	jsonPatchType   = "JSONPatch"
)

// maxReason is how many bytes of a webhook's own message are kept.
const maxReason = 512

type interpreterContext struct {
	metav1.TypeMeta `json:",inline"`
	Request         *contextRequest  `json:"request,omitempty"`
	Response        *contextResponse `json:"response,omitempty"`
}

type contextRequest struct {
	UID              types.UID                        `json:"uid"`
	Kind             metav1.GroupVersionKind          `json:"kind"`
	Name             string                           `json:"name"`
	Namespace        string                           `json:"namespace,omitempty"`
	Operation        v1alpha1.InterpretationOperation `json:"operation"`
	Object           json.RawMessage                  `json:"object,omitempty"`
	ObservedObject   json.RawMessage                  `json:"observedObject,omitempty"`
	Replicas         *int32                           `json:"replicas,omitempty"`
	AggregatedStatus []clusterStatus                  `json:"aggregatedStatus,omitempty"`
}

// clusterStatus is one cluster's report.
type clusterStatus struct {
	ClusterName    string         `json:"clusterName"`
	Status         map[string]any `json:"status,omitempty"`
	Applied        bool           `json:"applied,omitempty"`
	AppliedMessage string         `json:"appliedMessage,omitempty"`
	Health         string         `json:"health,omitempty"`
}

type contextResponse struct {
	UID        types.UID `json:"uid"`
	Successful bool      `json:"successful"`
	Status     *struct {
		Message string `json:"message,omitempty"`
		Code    int32  `json:"code,omitempty"`
	} `json:"status,omitempty"`
	Patch               []byte                 `json:"patch,omitempty"`
	PatchType           *string                `json:"patchType,omitempty"`
	Replicas            *int64                 `json:"replicas,omitempty"`
	ReplicaRequirements *requirements          `json:"replicaRequirements,omitempty"`
	Components          []contextComponent     `json:"components,omitempty"`
	Dependencies        []interpret.Dependency `json:"dependencies,omitempty"`
	RawStatus           json.RawMessage        `json:"rawStatus,omitempty"`
	Healthy             *bool                  `json:"healthy,omitempty"`
}

type contextComponent struct {
	Name                string        `json:"name"`
	Replicas            int64         `json:"replicas"`
	ReplicaRequirements *requirements `json:"replicaRequirements,omitempty"`
}

// requirements are what one replica needs.
type requirements struct {
	NodeClaim *struct {
		HardNodeAffinity *corev1.NodeSelector `json:"hardNodeAffinity,omitempty"`
		NodeSelector     map[string]string    `json:"nodeSelector,omitempty"`
		Tolerations      []corev1.Toleration  `json:"tolerations,omitempty"`
	} `json:"nodeClaim,omitempty"`
	ResourceRequest   corev1.ResourceList `json:"resourceRequest,omitempty"`
	PriorityClassName string              `json:"priorityClassName,omitempty"`
}

// encode returns the request for a question. uid must be in the response.
func encode(q interpret.Question, uid types.UID) ([]byte, error) {
	r := &contextRequest{UID: uid, Kind: metav1.GroupVersionKind(q.Kind), Name: q.Name, Namespace: q.Namespace, Operation: q.Operation,
		Object: q.Object, ObservedObject: q.Observed, Replicas: q.Replicas}
	for _, m := range q.Members {
		status := clusterStatus{ClusterName: m.Cluster, Status: m.Status, Applied: m.Generation > 0, Health: "Unknown"}
		switch {
		case m.Stale != "":
			status.AppliedMessage = m.Stale
		case m.Health == v1alpha1.Healthy:
			status.Health = "Healthy"
		case m.Health == v1alpha1.Degraded || m.Health == v1alpha1.Progressing:
			status.Health = "Unhealthy"
		}
		r.AggregatedStatus = append(r.AggregatedStatus, status)
	}
	return json.Marshal(interpreterContext{TypeMeta: metav1.TypeMeta{APIVersion: protocolVersion, Kind: protocolKind}, Request: r})
}

func refuse(format string, args ...any) error {
	return &interpret.RefusedError{Cause: fmt.Errorf(format, args...)}
}

// decode returns the answer in a response.
func decode(q interpret.Question, uid types.UID, body []byte) (interpret.Answer, error) {
	var in interpreterContext
	if err := json.Unmarshal(body, &in); err != nil {
		return interpret.Answer{}, refuse("the response is not a %s: %w", protocolKind, err)
	}
	r := in.Response
	switch {
	case r == nil:
		return interpret.Answer{}, refuse("the response of type %s has no response", protocolKind)
	case in.APIVersion != "" && in.APIVersion != protocolVersion:
		return interpret.Answer{}, refuse("the response has the version %s, want %s", shorten(in.APIVersion), protocolVersion)
	case r.UID != uid:
		return interpret.Answer{}, refuse("the response has another uid than the request")
	case !r.Successful && r.Status == nil:
		return interpret.Answer{}, refuse("it was not successful, and gives no reason")
	case !r.Successful:
		return interpret.Answer{}, refuse("%s (code %d)", shorten(r.Status.Message), r.Status.Code)
	}
	a, err := r.answer(q)
	if err == nil {
		err = q.Check(a)
	}
	if err != nil {
		return interpret.Answer{}, &interpret.RefusedError{Cause: err}
	}
	return a, nil
}

// answer returns what the response says about the operation of the question, and nothing else.
func (r *contextResponse) answer(q interpret.Question) (a interpret.Answer, err error) {
	switch q.Operation {
	case v1alpha1.InterpretReplica:
		a.Replicas = r.Replicas
		a.Pod, err = r.ReplicaRequirements.pod()
	case v1alpha1.InterpretComponent:
		for _, c := range r.Components {
			pod, err := c.ReplicaRequirements.pod()
			if err != nil {
				return a, err
			}
			part := interpret.Component{Name: c.Name, Replicas: c.Replicas, Pod: pod}
			if pod == nil {
				part.Requests = map[string]string{}
			}
			a.Components = append(a.Components, part)
		}
	case v1alpha1.ReviseReplica, v1alpha1.Retain, v1alpha1.AggregateStatus:
		if len(r.Patch) > 0 && (r.PatchType == nil || *r.PatchType != jsonPatchType) {
			return a, errors.New("the response has a patch, and patchType is not " + jsonPatchType)
		}
		a.Object, err = patched(q.Object, r.Patch)
	case v1alpha1.InterpretHealth:
		a.Healthy = r.Healthy
	case v1alpha1.InterpretStatus:
		// Not encoding/json: whole numbers stay int64, as in the object itself.
		if len(r.RawStatus) > 0 && utiljson.Unmarshal(r.RawStatus, &a.Status) != nil {
			a.Status = nil
		}
	case v1alpha1.InterpretDependency:
		a.Dependencies = r.Dependencies
	}
	return a, err
}

// pod returns the spec of a pod with the requirements; nil if there are none.
func (r *requirements) pod() (map[string]any, error) {
	if r == nil {
		return nil, nil
	}
	spec := corev1.PodSpec{PriorityClassName: r.PriorityClassName,
		Containers: []corev1.Container{{Name: "replica", Resources: corev1.ResourceRequirements{Requests: r.ResourceRequest}}}}
	if claim := r.NodeClaim; claim != nil {
		spec.NodeSelector, spec.Tolerations = claim.NodeSelector, claim.Tolerations
		if claim.HardNodeAffinity != nil {
			spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: claim.HardNodeAffinity}}
		}
	}
	out, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&spec)
	if err != nil {
		return nil, fmt.Errorf("decode replicaRequirements: %w", err)
	}
	return out, nil
}

func shorten(s string) string {
	if len(s) <= maxReason {
		return s
	}
	cut := maxReason
	for cut > 0 && s[cut]&0xC0 == 0x80 { // not within a UTF-8 sequence
		cut--
	}
	return s[:cut] + "…"
}
