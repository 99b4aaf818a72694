package apiserver

import (
	"context"
	"fmt"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	applyconfigurations "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	admissionregistrationclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	listers "k8s.io/client-go/listers/admissionregistration/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

const (
	// policyTypesManager owns the fields in the status of policies; kube-controller-manager uses the same name.
	policyTypesManager = "validatingadmissionpolicy-status"
	// maxTypeChecks bounds how often the expressions of one policy are compiled. Upstream compiles all variables again for each expression and each
	// type, so the largest policy would take an hour.
	maxTypeChecks = 5000
	// typesOfPolicy is how many types upstream checks at most.
	typesOfPolicy = 10
)

// PoliciesResource is the resource of the policies whose types are checked.
var PoliciesResource = admissionregistrationv1.SchemeGroupVersion.WithResource("validatingadmissionpolicies")

// policyTypes writes status.typeChecking and status.observedGeneration of ValidatingAdmissionPolicies. Upstream's checker decides; its controller has no bound.
type policyTypes struct {
	policies listers.ValidatingAdmissionPolicyLister
	synced   cache.InformerSynced
	client   admissionregistrationclient.ValidatingAdmissionPolicyInterface
	checker  *validating.TypeChecker
	queue    workqueue.TypedRateLimitingInterface[string]
	// turn waits until the processor time of a check may be used, and returns the function that ends the use; nil if it always may.
	turn func(context.Context) (end func(), err error)
}

// validatingPolicyTypes checks the types in the expressions of policies.
func (l *leadership) validatingPolicyTypes(context.Context) (func(context.Context), error) {
	informer := l.caches.typed.Admissionregistration().V1().ValidatingAdmissionPolicies()
	p := &policyTypes{policies: informer.Lister(), client: l.client.AdmissionregistrationV1().ValidatingAdmissionPolicies(), turn: l.turn,
		// The documents of the API have the built-in types too. Upstream keeps their definitions, 12 MB, instead.
		checker: &validating.TypeChecker{SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: l.client.Discovery()}, RestMapper: l.mapper},
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())}
	add := func(object any) {
		if policy, ok := object.(*admissionregistrationv1.ValidatingAdmissionPolicy); ok && LacksTypes(policy) {
			p.queue.Add(policy.Name)
		}
	}
	registered, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, now any) { add(now) }})
	if err != nil {
		return nil, err
	}
	p.synced = registered.HasSynced
	return p.run, nil
}

// LacksTypes reports whether the types of a policy are still to be checked.
func LacksTypes(policy *admissionregistrationv1.ValidatingAdmissionPolicy) bool {
	return policy.DeletionTimestamp == nil && policy.Status.ObservedGeneration < policy.Generation
}

// run checks policies until ctx ends.
func (p *policyTypes) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	defer p.queue.ShutDown()
	if !cache.WaitForCacheSync(ctx.Done(), p.synced) {
		return
	}
	running.Go(func() { wait.UntilWithContext(ctx, p.work, time.Second) })
	<-ctx.Done()
}

func (p *policyTypes) work(ctx context.Context) {
	for ctx.Err() == nil {
		name, ended := p.queue.Get()
		if ended {
			return
		}
		if err := p.reconcile(ctx, name); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "check the types of a policy failed; retrying", "policy", name)
			p.queue.AddRateLimited(name)
		} else {
			p.queue.Forget(name)
		}
		p.queue.Done(name)
	}
}

func (p *policyTypes) reconcile(ctx context.Context, name string) error {
	policy, err := p.policies.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !LacksTypes(policy) {
		return err
	}
	warnings, err := p.check(ctx, policy)
	if err != nil {
		return err
	}
	checked := applyconfigurations.TypeChecking()
	for _, w := range warnings {
		checked.WithExpressionWarnings(applyconfigurations.ExpressionWarning().WithFieldRef(w.FieldRef).WithWarning(w.Warning))
	}
	_, err = p.client.ApplyStatus(ctx, applyconfigurations.ValidatingAdmissionPolicy(name).WithStatus(applyconfigurations.ValidatingAdmissionPolicyStatus().
		WithObservedGeneration(policy.Generation).WithTypeChecking(checked)), metav1.ApplyOptions{FieldManager: policyTypesManager, Force: true})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// check returns the warnings about the expressions of a policy. Each expression has a turn of its own.
func (p *policyTypes) check(ctx context.Context, policy *admissionregistrationv1.ValidatingAdmissionPolicy) (warnings []admissionregistrationv1.ExpressionWarning, err error) {
	var types *validating.TypeCheckingContext
	if err := p.inTurn(ctx, func() { types = p.checker.CreateContext(policy) }); err != nil {
		return nil, err
	}
	all := checkedExpressions(policy)
	n := affordableChecks(len(policy.Spec.Variables), len(all))
	for _, e := range all[:n] {
		err := p.inTurn(ctx, func() {
			if results := p.checker.CheckExpression(types, e.expression); len(results) > 0 {
				warnings = append(warnings, admissionregistrationv1.ExpressionWarning{FieldRef: e.field, Warning: results.String()})
			}
		})
		if err != nil {
			return nil, err
		}
	}
	if n < len(all) {
		warnings = append(warnings, admissionregistrationv1.ExpressionWarning{FieldRef: all[n].field, Warning: fmt.Sprintf(
			"the types of this expression and the following ones are not checked: a policy with %d variables has room for %d: divide the policy", len(policy.Spec.Variables), n)})
	}
	return warnings, nil
}

// inTurn calls do when the processor time may be used.
func (p *policyTypes) inTurn(ctx context.Context, do func()) error {
	if p.turn != nil {
		end, err := p.turn(ctx)
		if err != nil {
			return err
		}
		defer end()
	}
	do()
	return ctx.Err()
}

// checkedExpression is an expression whose types are checked, with the path of its field.
type checkedExpression struct{ field, expression string }

// checkedExpressions returns the expressions of a policy that upstream checks.
func checkedExpressions(policy *admissionregistrationv1.ValidatingAdmissionPolicy) (all []checkedExpression) {
	validations := field.NewPath("spec", "validations")
	for i, v := range policy.Spec.Validations {
		all = append(all, checkedExpression{validations.Index(i).Child("expression").String(), v.Expression})
		if v.MessageExpression != "" {
			all = append(all, checkedExpression{validations.Index(i).Child("messageExpression").String(), v.MessageExpression})
		}
	}
	return all
}

// affordableChecks returns how many expressions of a policy with that many variables are checked.
func affordableChecks(variables, expressions int) int {
	return min(expressions, maxTypeChecks/(typesOfPolicy*(1+variables)))
}
