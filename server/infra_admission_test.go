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

// TestRecordUser: the requesting user is recorded when an object is created, and never
// changed later.
func TestRecordUser(t *testing.T) {
	ann := apiserver.User{Name: "ann", Groups: []string{"ops", "system:authenticated", "ops"}}
	const ofAnn = `{"groups":["ops","system:authenticated"],"uid":"7","username":"ann"}`
	for _, tt := range []struct{ name, old, object, want string }{
		{"no value in the request", ``, `{"spec":{"plan":"p"}}`, `{"spec":{"approver":` + ofAnn + `,"plan":"p"}}`},
		{"another user in the request", ``, `{"spec":{"approver":{"username":"bob","groups":["kings"]}}}`, `{"spec":{"approver":` + ofAnn + `}}`},
		{"invalid value in the request", ``, `{"spec":{"approver":["bob"]}}`, `{"spec":{"approver":` + ofAnn + `}}`},
		{"no spec", ``, `{}`, `{"spec":{"approver":` + ofAnn + `}}`},
		{"invalid spec", ``, `{"spec":"x"}`, `{"spec":"x"}`},
		{"changed by another user", `{"spec":{"approver":{"username":"bob"}}}`, `{"spec":{"reason":"x"}}`, `{"spec":{"approver":{"username":"bob"},"reason":"x"}}`},
		{"replaced in an update", `{"spec":{"approver":{"username":"bob"}}}`, `{"spec":{"approver":{"username":"ann"}}}`, `{"spec":{"approver":{"username":"bob"}}}`},
		{"old object without a user", `{"spec":{}}`, `{"spec":{"approver":{"username":"ann"}}}`, `{"spec":{}}`},
		{"old object without a spec", `{}`, `{}`, `{}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &apiserver.AdmissionRequest{User: ann, UserUID: "7", Object: parsed(t, tt.object)}
			if tt.old != "" {
				r.Old = parsed(t, tt.old)
			}
			recordUser("approver")(r)
			recordUser("approver")(r) // it is called again after webhooks
			if got, err := json.Marshal(r.Object.Object); err != nil || string(got) != tt.want {
				t.Errorf("got %s, %v", got, err)
			}
		})
	}
	var typed v1alpha1.Person
	signed := person(&apiserver.AdmissionRequest{User: ann, UserUID: "7"})
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(signed, &typed); err != nil ||
		!reflect.DeepEqual(typed, v1alpha1.Person{Username: "ann", UID: "7", Groups: []string{"ops", "system:authenticated"}}) {
		t.Errorf("decoded: %+v, %v", typed, err)
	}
}

// TestMatchesPlan: an Approval must match the current plan; otherwise the error names
// the next step.
func TestMatchesPlan(t *testing.T) {
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
	broken := errors.New("the datastore is unreachable")
	check := matchesPlan(func(_ context.Context, namespace, name string) (*v1alpha1.Plan, error) {
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
		{"good", other, "spec.digest", "the plan's digest is sha256:1: review the plan again"},
		{"none", digest, "spec.plan", "`kubectl get plans -n shop`"},
		{"new", "", "spec.plan", "wait until its status.phase is Planned"},
		{"planning", digest, "spec.plan", "wait until its status.phase is Planned"},
		{"failed", "", "spec.plan", "fix the errors in its status.problems and create a new plan"},
		{"applied", digest, "spec.plan", "create a new plan for the remaining changes"},
		{"speculative", digest, "spec.plan", "create a plan without spec.objects"},
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
				t.Error("updates are checked too")
			}
		})
	}
	r := &apiserver.AdmissionRequest{Namespace: "shop", Object: parsed(t, `{"spec":{"plan":"broken","digest":"x"}}`)}
	if err := check(t.Context(), r); !errors.Is(err, broken) {
		t.Errorf("a plan that cannot be read: %v", err)
	}
}
