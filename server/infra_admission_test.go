package server

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
)

func parsed(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

// TestSigned: who asks is written when an object is made, and never again.
func TestSigned(t *testing.T) {
	ann := apiserver.User{Name: "ann", Groups: []string{"ops", "system:authenticated", "ops"}}
	const ofAnn = `{"groups":["ops","system:authenticated"],"uid":"7","username":"ann"}`
	for _, tt := range []struct{ name, old, object, want string }{
		{"nothing given", ``, `{"spec":{"plan":"p"}}`, `{"spec":{"approver":` + ofAnn + `,"plan":"p"}}`},
		{"somebody else given", ``, `{"spec":{"approver":{"username":"bob","groups":["kings"]}}}`, `{"spec":{"approver":` + ofAnn + `}}`},
		{"nonsense given", ``, `{"spec":{"approver":["bob"]}}`, `{"spec":{"approver":` + ofAnn + `}}`},
		{"no spec", ``, `{}`, `{"spec":{"approver":` + ofAnn + `}}`},
		{"a spec that is none", ``, `{"spec":"x"}`, `{"spec":"x"}`},
		{"changed by somebody else", `{"spec":{"approver":{"username":"bob"}}}`, `{"spec":{"reason":"x"}}`, `{"spec":{"approver":{"username":"bob"},"reason":"x"}}`},
		{"taken over", `{"spec":{"approver":{"username":"bob"}}}`, `{"spec":{"approver":{"username":"ann"}}}`, `{"spec":{"approver":{"username":"bob"}}}`},
		{"of old, by nobody", `{"spec":{}}`, `{"spec":{"approver":{"username":"ann"}}}`, `{"spec":{}}`},
		{"of old, without a spec", `{}`, `{}`, `{}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &apiserver.AdmissionRequest{User: ann, UserUID: "7", Object: parsed(t, tt.object)}
			if tt.old != "" {
				r.Old = parsed(t, tt.old)
			}
			signedAs("approver")(r)
			signedAs("approver")(r) // it is asked again after webhooks
			if got, err := json.Marshal(r.Object.Object); err != nil || string(got) != tt.want {
				t.Errorf("got %s, %v", got, err)
			}
		})
	}
	var typed v1alpha1.Person
	signed := person(&apiserver.AdmissionRequest{User: ann, UserUID: "7"})
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(signed, &typed); err != nil ||
		!reflect.DeepEqual(typed, v1alpha1.Person{Username: "ann", UID: "7", Groups: []string{"ops", "system:authenticated"}}) {
		t.Errorf("as it is read: %+v, %v", typed, err)
	}
}

// TestOfItsPlan: an Approval is of the plan as it is now, or refused in words that say what to do.
func TestOfItsPlan(t *testing.T) {
	const digest, other = "sha256:1", "sha256:2"
	planned := v1alpha1.PlanStatus{Phase: v1alpha1.PlanPlanned, Digest: digest}
	now := metav1.Now()
	plans := map[string]*v1alpha1.Plan{
		"good":        {Status: planned},
		"new":         {},
		"planning":    {Status: v1alpha1.PlanStatus{Phase: v1alpha1.PlanPlanning, Digest: digest}},
		"failed":      {Status: v1alpha1.PlanStatus{Phase: v1alpha1.PlanFailed}},
		"applied":     {Status: v1alpha1.PlanStatus{Phase: v1alpha1.PlanApplied, Digest: digest}},
		"speculative": {Spec: v1alpha1.PlanSpec{Objects: []runtime.RawExtension{{}}}, Status: planned},
		"going":       {ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}, Status: planned},
	}
	broken := errors.New("the datastore cannot be reached")
	check := ofItsPlan(func(_ context.Context, namespace, name string) (*v1alpha1.Plan, error) {
		if name == "broken" {
			return nil, broken
		}
		if plan := plans[name]; plan != nil && namespace == "shop" {
			return plan, nil
		}
		return nil, apierrors.NewNotFound(v1alpha1.PlanResource.GroupResource(), name)
	})
	for _, tt := range []struct{ plan, digest, field, says string }{
		{"good", digest, "", ""},
		{"good", other, "spec.digest", "the plan's digest is sha256:1: look at it again"},
		{"none", digest, "spec.plan", "`kubectl get plans -n shop`"},
		{"new", "", "spec.plan", "wait until its status.phase is Planned"},
		{"planning", digest, "spec.plan", "wait until its status.phase is Planned"},
		{"failed", "", "spec.plan", "put that right and make another"},
		{"applied", digest, "spec.plan", "make another of what is left"},
		{"speculative", digest, "spec.plan", "write them, and plan without"},
		{"going", digest, "spec.plan", "the plan is being deleted"},
	} {
		t.Run(tt.plan+" "+tt.digest, func(t *testing.T) {
			r := &apiserver.AdmissionRequest{Namespace: "shop", Name: "mine", Object: parsed(t,
				`{"apiVersion":"infra.atoll.dev/v1alpha1","kind":"Approval","spec":{"plan":"`+tt.plan+`","digest":"`+tt.digest+`"}}`)}
			err := check(t.Context(), r)
			if tt.says == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), tt.field+": ") {
				t.Errorf("got %v", err)
			}
			if r.Old = r.Object; check(t.Context(), r) != nil {
				t.Error("a change of what is there is judged, too")
			}
		})
	}
	r := &apiserver.AdmissionRequest{Namespace: "shop", Object: parsed(t, `{"spec":{"plan":"broken","digest":"x"}}`)}
	if err := check(t.Context(), r); !errors.Is(err, broken) {
		t.Errorf("a plan that cannot be read: %v", err)
	}
}
