package cliview

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// applies makes every plan ready at once, and every apply end with the status.
func (s *testSession) applies(planStatus, applyStatus string, changes ...change.Change) {
	s.plans(planStatus, changes...)
	s.statuses["applies"] = applyStatus
}

const (
	oneCreate = `{"phase":"Planned","digest":"DIGEST","summary":{"create":1}}`
	oneDone   = `{"phase":"Succeeded","progress":{"done":1,"total":1},"succeeded":1,"done":{"create":1}}`
)

func TestPlanAndApply(t *testing.T) {
	s := newTestSession(t)
	s.applies(oneCreate, oneDone, created("a"))
	s.answers("yes\n")
	if err := s.PlanAndApply(t.Context(), &Request{}, ApplyOptions{Parallelism: 7}); err != nil {
		t.Fatal(err)
	}
	contains(t, s.out.String(), `demo_file["a"] will be created`, "\nApply complete! Resources: 1 added, 0 changed, 0 destroyed.\n")
	contains(t, s.err.String(), `Only "yes" will be accepted: `, "approval.infra.atoll.dev/plan-1-2 created for digest "+digest, "apply.infra.atoll.dev/apply-3 created")
	if got, want := s.at(approvalsAt, "plan-1-2", "spec"), `{"digest":"`+digest+`","plan":"plan-1"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := s.at(appliesAt, "apply-3", "spec"), `{"digest":"`+digest+`","parallelism":7,"plan":"plan-1"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestApplyRequiresYes(t *testing.T) {
	for answer, want := range map[string]string{"no\n": "apply cancelled", "y\n": "apply cancelled", "": "standard input is not a terminal", "unattended": "standard input is not a terminal"} {
		s := newTestSession(t)
		s.applies(oneCreate, oneDone, created("a"))
		if answer != "unattended" {
			s.answers(answer)
		}
		err := s.PlanAndApply(t.Context(), &Request{}, ApplyOptions{})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "`atoll approve plan-1 -n shop` and `atoll apply plan-1 -n shop`") {
			t.Errorf("%q: %v", answer, err)
		}
		if s.made() != 1 {
			t.Errorf("%q: %d objects were created, want only the plan", answer, s.made())
		}
	}
}

func TestApplyWithoutChangesDoesNotPrompt(t *testing.T) {
	s := newTestSession(t)
	s.applies(`{"phase":"Planned","digest":"DIGEST","summary":{"noOp":4}}`, oneDone)
	if err := s.PlanAndApply(t.Context(), &Request{}, ApplyOptions{}); err != nil || s.made() != 1 {
		t.Errorf("%v, %d created", err, s.made())
	}
}

// TestApplyRecordsDrift applies a plan whose only effect is to record drift that the configuration
// accepts. Otherwise the condition Drifted would stay.
func TestApplyRecordsDrift(t *testing.T) {
	s := newTestSession(t)
	const planned = `{"phase":"Planned","digest":"DIGEST","summary":{"noOp":4,"drift":1}}`
	s.applies(planned, `{"phase":"Succeeded","progress":{"done":1,"total":1},"succeeded":1,"done":{"noOp":1,"drift":1}}`)
	if err := s.PlanAndApply(t.Context(), &Request{Refresh: true}, ApplyOptions{}); err != nil || s.made() != 3 {
		t.Errorf("%v, %d created", err, s.made())
	}
	contains(t, s.out.String(), "No changes.", "Applying this plan records them in the state.")

	partial := newTestSession(t)
	partial.applies(`{"phase":"Planned","digest":"DIGEST","summary":{"noOp":4,"drift":1},"problems":[{"address":"File.demo/b","message":"bad"}]}`, oneDone)
	if err := partial.PlanAndApply(t.Context(), &Request{Refresh: true}, ApplyOptions{}); err == nil || partial.made() != 1 {
		t.Errorf("%v, %d created", err, partial.made())
	}
}

func TestAutoApproveRejectsPartialPlan(t *testing.T) {
	s := newTestSession(t)
	s.applies(`{"phase":"Planned","digest":"DIGEST","summary":{"create":1},"problems":[{"address":"File.demo/b","message":"bad"}]}`, oneDone, created("a"))
	err := s.PlanAndApply(t.Context(), &Request{}, ApplyOptions{AutoApprove: true})
	if err == nil || !strings.Contains(err.Error(), "--auto-approve does not apply a plan that leaves out resources") || s.made() != 1 {
		t.Errorf("%v, %d created", err, s.made())
	}
	// An interactive user may continue, and the final error repeats the problem.
	s.answers("yes\n")
	if err := s.PlanAndApply(t.Context(), &Request{}, ApplyOptions{}); err == nil || !strings.Contains(err.Error(), "a problem prevented resources") || s.made() != 4 {
		t.Errorf("%v, %d created", err, s.made())
	}
}

func TestForbiddenApprovalNamesRole(t *testing.T) {
	s := newTestSession(t)
	s.applies(oneCreate, oneDone, created("a"))
	s.before = func(r fakeapi.Request) *metav1.Status {
		if r.Verb == "create" && r.Resource == approvalsAt {
			return &metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Message: `approvals.infra.atoll.dev is forbidden: User "eve" cannot create resource "approvals" in API group "infra.atoll.dev"`}
		}
		return nil
	}
	err := s.PlanAndApply(t.Context(), &Request{}, ApplyOptions{AutoApprove: true})
	if err == nil {
		t.Fatal("no error")
	}
	contains(t, err.Error(), "permission denied", "atoll:infra-approver", "The plan is kept: once it is approved, apply it with `atoll apply plan-1 -n shop`")
}

func TestFailedApply(t *testing.T) {
	s := newTestSession(t)
	s.applies(oneCreate, `{"phase":"Failed","progress":{"done":4,"total":4},"succeeded":1,"failed":1,"refused":1,"blocked":1,"done":{"create":1},
		"problems":[{"address":"File.demo/b","message":"the disk is full"}]}`, created("a"))
	err := s.PlanAndApply(t.Context(), &Request{}, ApplyOptions{AutoApprove: true})
	if !errors.Is(err, ErrIncomplete) {
		t.Fatal(err)
	}
	contains(t, err.Error(), "1 failed, 1 rejected as stale, 1 blocked by those", "run `atoll apply -n shop` for the rest")
	contains(t, s.err.String(), "Not applied:\n  File.demo/b: the disk is full")
	contains(t, s.out.String(), "Apply incomplete. Resources: 1 added")
}

func TestApplyApprovedPlan(t *testing.T) {
	s := newTestSession(t)
	s.applies(oneCreate, oneDone)
	s.put(plansAt, "p", `{"status":`+oneCreate+`}`)
	err := s.ApplyPlan(t.Context(), "p", ApplyOptions{})
	if err == nil || !strings.Contains(err.Error(), "plan p is not approved: review it with `atoll show p -n shop`, then approve it with `atoll approve p -n shop`") {
		t.Error(err)
	}
	s.put(approvalsAt, "other", `{"spec":{"plan":"p","digest":"sha256:0"}}`)
	if err := s.ApplyPlan(t.Context(), "p", ApplyOptions{}); err == nil {
		t.Error("an approval of another digest counts")
	}
	if err := s.Approve(t.Context(), "p", ApproveOptions{Yes: true, Reason: "why not"}); err != nil {
		t.Fatal(err)
	}
	if err := s.ApplyPlan(t.Context(), "p", ApplyOptions{Format: "name"}); err != nil {
		t.Fatal(err)
	}
	contains(t, s.out.String(), "apply.infra.atoll.dev/apply-")

	// A policy may have approved it, or the user with --auto-approve.
	s.put(plansAt, "auto", `{"status":{"phase":"Planned","digest":"DIGEST","summary":{"create":1},"conditions":[{"type":"Approved","status":"True","reason":"AutoApproved"}]}}`)
	s.put(plansAt, "now", `{"status":`+oneCreate+`}`)
	before := s.made()
	if err := s.ApplyPlan(t.Context(), "auto", ApplyOptions{Detached: true}); err != nil || s.made() != before+1 {
		t.Errorf("%v, %d", err, s.made())
	}
	if err := s.ApplyPlan(t.Context(), "now", ApplyOptions{AutoApprove: true}); err != nil || s.made() != before+3 {
		t.Errorf("%v, %d", err, s.made())
	}
}

func TestApproveErrors(t *testing.T) {
	s := newTestSession(t)
	for name, status := range map[string]string{
		"early":   `{"phase":"Planning"}`,
		"failed":  `{"phase":"Failed","conditions":[{"type":"Complete","status":"False","reason":"Cycle","message":"a → b → a"}]}`,
		"done":    `{"phase":"Applied","digest":"DIGEST","summary":{"create":1}}`,
		"nothing": `{"phase":"Planned","digest":"DIGEST"}`,
		"ready":   `{"phase":"Planned","digest":"DIGEST","summary":{"create":1,"delete":12}}`,
	} {
		s.put(plansAt, name, `{"status":`+status+`}`)
	}
	s.put(plansAt, "files", `{"spec":{"objects":[{"kind":"File"}]},"status":{"phase":"Planned"}}`)
	for range 12 {
		s.changes["ready"] = append(s.changes["ready"], deleted("n"))
	}
	for name, want := range map[string]string{
		"early": "is not ready", "failed": "a → b → a", "done": "was already applied", "nothing": "no changes to approve", "files": "`kubectl apply` the files",
		"ready": "use --yes, or --digest", "none": "plan none not found",
	} {
		if err := s.Approve(t.Context(), name, ApproveOptions{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	contains(t, s.err.String(), "Plan: 1 to add, 0 to change, 12 to destroy.", "Plan ready, digest "+digest, `  delete demo_network["n"]`, "  and 2 more")
	err := s.Approve(t.Context(), "ready", ApproveOptions{Digest: "sha256:1"})
	if err == nil || !strings.Contains(err.Error(), "plan ready has digest "+digest+", not sha256:1: review it again with `atoll show ready -n shop`") {
		t.Error(err)
	}
	if err := s.Approve(t.Context(), "ready", ApproveOptions{Digest: digest}); err != nil {
		t.Error(err)
	}
	s.answers("no\n")
	if err := s.Approve(t.Context(), "ready", ApproveOptions{}); err == nil || !strings.Contains(err.Error(), "was not approved") {
		t.Error(err)
	}
	s.answers("yes\n")
	if err := s.Approve(t.Context(), "ready", ApproveOptions{}); err != nil {
		t.Error(err)
	}
}

// An interruption cancels the apply and waits for its end.
func TestInterruptCancelsApply(t *testing.T) {
	s := newTestSession(t)
	s.put(appliesAt, "a", `{"spec":{"plan":"p"},"status":{"phase":"Running","progress":{"done":1,"total":3}}}`)
	ctx, cancel := context.WithCancel(t.Context())
	s.looked = func(u *unstructured.Unstructured) {
		if u.Object["spec"].(map[string]any)["cancel"] == true {
			u.Object["status"] = s.status(`{"phase":"Canceled","progress":{"done":2,"total":3},"done":{"create":2}}`)
			return
		}
		cancel()
	}
	err := s.WaitApply(ctx, "a", "")
	if !errors.Is(err, ErrIncomplete) {
		t.Fatal(err)
	}
	contains(t, err.Error(), "apply a was cancelled after 2 of 3 changes", "to apply the rest, run `atoll apply -n shop`")
	contains(t, s.err.String(), "Interrupt again to exit")
	contains(t, s.out.String(), "Apply cancelled. Resources: 2 added")
}

func TestCancel(t *testing.T) {
	s := newTestSession(t)
	s.put(appliesAt, "a", `{"spec":{"plan":"p"},"status":{"phase":"Running"}}`)
	s.put(appliesAt, "done", `{"spec":{"plan":"p"},"status":{"phase":"Succeeded"}}`)
	s.looked = func(u *unstructured.Unstructured) {
		if u.Object["spec"].(map[string]any)["cancel"] == true {
			u.Object["status"] = s.status(`{"phase":"Canceled"}`)
		}
	}
	if err := s.Cancel(t.Context(), "a", false, ""); err != nil {
		t.Error(err)
	}
	if got := s.at(appliesAt, "a", "spec", "cancel"); got != "true" {
		t.Error(got)
	}
	for name, want := range map[string]string{"done": "has already ended: Succeeded", "none": "apply none not found"} {
		if err := s.Cancel(t.Context(), name, true, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestShowPendingApply(t *testing.T) {
	s := newTestSession(t)
	s.put(appliesAt, "a", `{"spec":{"plan":"p","author":{"username":"ann"}},"status":{"phase":"Pending","approvedBy":["bob"],"startTime":"2026-01-01T10:00:00.000000Z","completionTime":"2026-01-01T10:00:02.500000Z",
		"conditions":[{"type":"Complete","status":"False","reason":"NotApproved","message":"1 of 2 approvals"}]}}`)
	if err := s.Show(t.Context(), "a", Filter{}, ""); err != nil {
		t.Fatal(err)
	}
	contains(t, s.out.String(), "Apply a of plan p", ": Pending\n", "Waiting: 1 of 2 approvals (`atoll approve p -n shop`)", "Created by ann, approved by bob", "Started 2026-01-01T10:00:00Z, took 2.5s")

	looks := 0
	s.looked = func(u *unstructured.Unstructured) {
		if looks++; looks > 3 {
			u.Object["status"] = s.status(oneDone)
		}
	}
	if err := s.WaitApply(t.Context(), "a", ""); err != nil {
		t.Fatal(err)
	}
	if strings.Count(s.err.String(), "Waiting: 1 of 2 approvals") != 1 {
		t.Error(s.err.String())
	}
}

func TestProgressLines(t *testing.T) {
	s := newTestSession(t)
	clock := clocktesting.NewFakeClock(time.Unix(0, 0))
	s.Clock = clock
	m := s.meter()
	p := v1alpha1.Progress{Done: 10, Total: 4000, PerMinute: 600, Remaining: &metav1.Duration{Duration: 399 * time.Second}}
	m.show("Applying", p)
	clock.Step(lineInterval)
	m.show("Applying", p)
	m.show("Applying", p)
	p.Done = 20
	m.show("Applying", p)
	clock.Step(lineInterval)
	m.show("Applying", p)
	m.end()
	want := "Applying: 10 of 4000, 600 a minute, 6m39s left\nApplying: 20 of 4000, 600 a minute, 6m39s left\n"
	if got := s.err.String(); got != want {
		t.Errorf("got %q", got)
	}
}

func TestProgressBar(t *testing.T) {
	s := newTestSession(t)
	s.ErrIsTerminal = true
	m := s.meter()
	for _, done := range []int64{0, 50, 100, 120, -3} {
		text := barText("Planning", v1alpha1.Progress{Done: done, Total: 100})
		if _, bar, _ := strings.Cut(text, "["); strings.Index(bar, "]") != barWidth {
			t.Errorf("%d: %s", done, text)
		}
	}
	m.show("Planning", v1alpha1.Progress{})
	m.say("a line")
	m.end()
	if got, want := s.err.String(), "\rPlanning …\x1b[K\r\x1b[Ka line\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A plan that a policy approves needs no right to approve.
func TestPolicyApprovedPlanNeedsNoApproval(t *testing.T) {
	s := newTestSession(t)
	s.applies(oneCreate, oneDone, created("a"))
	looks := 0
	s.looked = func(u *unstructured.Unstructured) {
		if looks++; looks == 3 {
			u.Object["status"] = s.status(`{"phase":"Planned","digest":"DIGEST","summary":{"create":1},"conditions":[{"type":"Approved","status":"True","reason":"AutoApproved"}]}`)
		}
	}
	if err := s.PlanAndApply(t.Context(), &Request{}, ApplyOptions{AutoApprove: true}); err != nil || s.api.Get(approvalsAt, "shop", "plan-1-2") != nil {
		t.Errorf("%v; approvals were created: %v", err, s.api.Get(approvalsAt, "shop", "plan-1-2"))
	}
}

func TestShowStalePlan(t *testing.T) {
	s := newTestSession(t)
	s.put(plansAt, "p", `{"spec":{"author":{"username":"ann"}},"status":{"phase":"Planned","digest":"`+digest+`","summary":{"create":1},"conditions":[
		{"type":"Approved","status":"False","reason":"Waiting","message":"1 of 2 approvals are there."},{"type":"Current","status":"False","reason":"Moved","message":"File/a has changed."}]}}`)
	s.changes["p"] = []change.Change{created("a")}
	if err := s.Show(t.Context(), "p", Filter{}, ""); err != nil {
		t.Fatal(err)
	}
	contains(t, s.out.String(), "Plan p, "+digest+", by ann: not approved: 1 of 2 approvals are there.\n", "This plan is stale: File/a has changed. Changes of resources that changed since are rejected", "run `atoll plan -n shop`")
}
