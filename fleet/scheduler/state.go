package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/quota"
	"github.com/atoll-dev/atoll/fleet/volumes"
)

// State is a copy of all API objects that decisions depend on, at one point in time. A preview
// changes it and compares the results; nothing is written.
type State struct {
	At time.Time
	// InWorkspace is that of LoadOptions.
	InWorkspace       bool
	Clusters          []*v1alpha1.Cluster
	Placements        []*v1alpha1.Placement
	ClusterPlacements []*v1alpha1.ClusterPlacement
	Namespaces        map[string]map[string]string // labels by name
	Quotas            []*v1alpha1.FleetQuota
	VolumePolicies    []*v1alpha1.VolumePolicy
	// Placed are the objects that are placed by their own decision.
	Placed []Placed
	// Fields are the known fields of clusters, which are not in the API; nil if they were not
	// read.
	Fields Fields
	// bindings of all objects, by KeyOf.
	bindings map[string]*v1alpha1.ResourceBinding
	imports  map[string]*v1alpha1.APIResourceImport
	// terminating are the namespaces that are being deleted.
	terminating map[string]bool
	knowledge   interpret.Catalog
	// autoscalers of objects, by KeyOf of the object.
	autoscalers map[string]*unstructured.Unstructured
	// claims are the claims of volumes, by KeyOf.
	claims map[string]*unstructured.Unstructured
	// classes are the PriorityClasses, by name, and disruptionBudgets the PodDisruptionBudgets, by namespace.
	classes           map[string]*unstructured.Unstructured
	disruptionBudgets map[string][]*unstructured.Unstructured
	// accounts are the roles of ServiceAccounts.
	accounts accountRoles
}

// Placed is an object that is placed by its own decision.
type Placed struct {
	Kind   interpret.KindInfo
	Object *unstructured.Unstructured
}

// Key returns its unique key.
func (p Placed) Key() string {
	return KeyOf(p.Kind.GroupKind(), p.Object.GetNamespace(), p.Object.GetName())
}

// Load reads a State. It needs permission to list the resources that the scheduler lists. Webhooks of
// ResourceInterpretations do not answer in it.
func Load(ctx context.Context, dyn dynamic.Interface, now time.Time) (*State, error) {
	return LoadWith(ctx, dyn, now, LoadOptions{})
}

// LoadOptions are options of LoadWith.
type LoadOptions struct {
	// Answers are those of webhooks of ResourceInterpretations; nil has none.
	Answers interpret.Answers
	// InWorkspace is set if the control plane is a workspace. It has no FleetQuotas and no imported types: see fleet.Config.
	InWorkspace bool
}

// LoadWith is Load with options.
func LoadWith(ctx context.Context, dyn dynamic.Interface, now time.Time, o LoadOptions) (*State, error) {
	s := &State{At: now, InWorkspace: o.InWorkspace, Namespaces: map[string]map[string]string{}, bindings: map[string]*v1alpha1.ResourceBinding{},
		imports: map[string]*v1alpha1.APIResourceImport{}, knowledge: interpret.BuiltIn().AnsweredBy(o.Answers), autoscalers: map[string]*unstructured.Unstructured{},
		claims: map[string]*unstructured.Unstructured{}, accounts: newAccountRoles(), terminating: map[string]bool{},
		classes: map[string]*unstructured.Unstructured{}, disruptionBudgets: map[string][]*unstructured.Unstructured{}}
	clusters, err := read[v1alpha1.Cluster](ctx, dyn, v1alpha1.ClusterResource)
	if err != nil {
		return nil, err
	}
	s.Clusters = clusters
	if s.Placements, err = read[v1alpha1.Placement](ctx, dyn, v1alpha1.PlacementResource); err != nil {
		return nil, err
	}
	if s.ClusterPlacements, err = read[v1alpha1.ClusterPlacement](ctx, dyn, v1alpha1.ClusterPlacementResource); err != nil {
		return nil, err
	}
	if s.VolumePolicies, err = read[v1alpha1.VolumePolicy](ctx, dyn, v1alpha1.VolumePolicyResource); err != nil {
		return nil, err
	}
	namespaces, err := read[metav1.PartialObjectMetadata](ctx, dyn, schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	if err != nil {
		return nil, err
	}
	for _, ns := range namespaces {
		s.Namespaces[ns.Name] = ns.Labels
		s.terminating[ns.Name] = ns.DeletionTimestamp != nil
	}
	if !s.InWorkspace {
		if err := s.loadRootOnly(ctx, dyn); err != nil {
			return nil, err
		}
	}
	if err := s.loadBindings(ctx, dyn); err != nil {
		return nil, err
	}
	return s, s.loadObjects(ctx, dyn)
}

// loadRootOnly reads the kinds that workspaces do not have.
func (s *State) loadRootOnly(ctx context.Context, dyn dynamic.Interface) (err error) {
	if s.Quotas, err = read[v1alpha1.FleetQuota](ctx, dyn, v1alpha1.FleetQuotaResource); err != nil {
		return err
	}
	imports, err := read[v1alpha1.APIResourceImport](ctx, dyn, v1alpha1.APIResourceImportResource)
	if err != nil {
		return err
	}
	for _, i := range imports {
		s.imports[i.Name] = i
	}
	return nil
}

func (s *State) loadBindings(ctx context.Context, dyn dynamic.Interface) error {
	for _, gvr := range []schema.GroupVersionResource{v1alpha1.ResourceBindingResource, v1alpha1.ClusterResourceBindingResource} {
		bindings, err := read[v1alpha1.ResourceBinding](ctx, dyn, gvr)
		if err != nil {
			return err
		}
		for _, b := range bindings {
			ref := b.Spec.Resource
			s.bindings[KeyOf(ref.GroupVersionKind().GroupKind(), b.Namespace, ref.Name)] = b
		}
	}
	return nil
}

// loadObjects reads the placed objects: those of built-in kinds, and of custom kinds that have
// bindings.
func (s *State) loadObjects(ctx context.Context, dyn dynamic.Interface) error {
	kinds := s.knowledge.Kinds()
	for _, b := range s.bindings {
		ref := b.Spec.Resource
		gk := ref.GroupVersionKind().GroupKind()
		if slices.ContainsFunc(kinds, func(k interpret.KindInfo) bool { return k.GroupKind() == gk }) || ref.Resource == "" || interpret.IsNamespace(gk) {
			continue
		}
		k, err := fleet.ReadKind(ctx, dyn, ref.GroupVersionKind(), ref.Resource, b.Namespace == "")
		if err != nil {
			return err
		}
		kinds = append(kinds, k)
	}
	interpretations, err := read[v1alpha1.ResourceInterpretation](ctx, dyn, v1alpha1.ResourceInterpretationResource)
	if err != nil {
		return err
	}
	customizations, _ := interpret.Customizations(interpretations) // those with errors are not in use
	s.knowledge = s.knowledge.With(kinds...).WithCustomizations(customizations...)
	for _, k := range s.knowledge.Kinds() {
		if !k.Placed && !slices.Contains([]schema.GroupKind{interpret.AutoscalerKind(), claimKind(), classKind(), budgetKind()}, k.GroupKind()) && !isRBAC(k.GroupKind()) {
			continue
		}
		err := each(ctx, dyn, k.GVR(), func(u *unstructured.Unstructured) error {
			u.SetManagedFields(nil)
			switch {
			case u.GetDeletionTimestamp() != nil || s.knowledge.StaysHome(u) != "":
			case k.GroupKind() == claimKind():
				s.AddClaim(u)
			case k.GroupKind() == classKind():
				s.classes[u.GetName()] = u
			case k.GroupKind() == budgetKind():
				s.disruptionBudgets[u.GetNamespace()] = append(s.disruptionBudgets[u.GetNamespace()], u)
			case isRBAC(k.GroupKind()):
				s.accounts.add(k, u)
			case !k.Placed:
				return s.AddAutoscaler(u)
			default:
				s.Placed = append(s.Placed, Placed{k, u})
			}
			return nil
		})
		if err != nil && !apierrors.IsNotFound(err) { // this control plane may not serve all kinds
			return fmt.Errorf("list %s: %w", k.GVR().GroupResource(), err)
		}
	}
	slices.SortFunc(s.Placed, func(a, b Placed) int { return cmp.Compare(a.Key(), b.Key()) })
	return nil
}

// AddAutoscaler adds an autoscaler. It limits the replicas of all its target's clusters
// together.
func (s *State) AddAutoscaler(autoscaler *unstructured.Unstructured) error {
	k, _ := s.knowledge.Find(interpret.AutoscalerKind())
	targets, err := k.Follows(autoscaler)
	if err != nil {
		return err
	}
	for _, t := range targets {
		key := KeyOf(t.To.GroupKind, t.To.Namespace, t.To.Name)
		// If there are two, the scheduler uses the first by name.
		if other := s.autoscalers[key]; other == nil || autoscaler.GetName() <= other.GetName() {
			s.autoscalers[key] = autoscaler
		}
	}
	return nil
}

// AddQuota adds a quota, or replaces the one with its name. It is counted by the placed objects.
func (s *State) AddQuota(q *v1alpha1.FleetQuota) error {
	q.Generation = max(1, q.Generation)
	uses := map[v1alpha1.QuotaObject]corev1.ResourceList{}
	for _, p := range s.Placed {
		selected, err := quota.Selects(q, p.Object.GetLabels())
		if err != nil {
			return fmt.Errorf("FleetQuota %s is invalid: %w", q.Name, err)
		}
		if !selected || p.Object.GetNamespace() != q.Namespace {
			continue
		}
		w := fleet.Workload{Kind: p.Kind, Object: p.Object, Autoscaler: s.autoscalers[p.Key()]}
		if b := s.bindings[p.Key()]; b != nil {
			w.Shares = b.Decided()
		}
		if of, _, err := w.Uses(); err == nil {
			uses[w.QuotaObject()] = of
		}
	}
	q.Status, _ = quota.Count(q, quota.Counted{Uses: uses}, s.At)
	s.Quotas = slices.DeleteFunc(s.Quotas, func(o *v1alpha1.FleetQuota) bool { return o.Namespace == q.Namespace && o.Name == q.Name })
	s.Quotas = append(s.Quotas, q)
	return nil
}

// AddClaim adds the claim of a volume.
func (s *State) AddClaim(claim *unstructured.Unstructured) {
	s.claims[KeyOf(claimKind(), claim.GetNamespace(), claim.GetName())] = claim
}

// read lists all objects of a resource.
func read[T any](ctx context.Context, dyn dynamic.Interface, gvr schema.GroupVersionResource) ([]*T, error) {
	var out []*T
	err := each(ctx, dyn, gvr, func(u *unstructured.Unstructured) error {
		item := new(T)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, item); err != nil {
			return fmt.Errorf("%s: %w", u.GetName(), err)
		}
		out = append(out, item)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", gvr.GroupResource(), err)
	}
	return out, nil
}

func each(ctx context.Context, dyn dynamic.Interface, gvr schema.GroupVersionResource, f func(*unstructured.Unstructured) error) error {
	options := metav1.ListOptions{Limit: 500}
	for {
		list, err := dyn.Resource(gvr).List(ctx, options)
		if err != nil {
			return err
		}
		for i := range list.Items {
			if err := f(&list.Items[i]); err != nil {
				return err
			}
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}

// Kind returns the known facts about a kind.
func (s *State) Kind(gk schema.GroupKind) (interpret.KindInfo, bool) { return s.knowledge.Find(gk) }

// Binding returns the binding of an object, nil if there is no binding.
func (s *State) Binding(k interpret.KindInfo, namespace, name string) *v1alpha1.ResourceBinding {
	return s.bindings[KeyOf(k.GroupKind(), namespace, name)]
}

// StaysHome returns why an object never goes to a cluster, or "".
func (s *State) StaysHome(obj *unstructured.Unstructured) string {
	why := s.knowledge.StaysHome(obj)
	if k, known := s.Kind(obj.GroupVersionKind().GroupKind()); known && why == interpret.PermissionsOfPeople && isForFleet(s.Snapshot().Choose(k, obj)) {
		return ""
	}
	return why
}

// Home returns why a custom resource without a binding is in no cluster, although its type may be: its status
// is kept in the control plane. It returns "" otherwise.
func (s *State) Home(obj *unstructured.Unstructured) string {
	gvk := obj.GroupVersionKind()
	if fleet.Native(gvk.GroupKind()) || s.bindings[KeyOf(gvk.GroupKind(), obj.GetNamespace(), obj.GetName())] != nil || interpret.HomeOf(obj, nil) == v1alpha1.HomeMembers {
		return ""
	}
	trimmed := obj.DeepCopy()
	fleet.TrimToStatusManagers(trimmed)
	keeper := interpret.StatusKeeper(trimmed)
	if keeper == "" {
		return ""
	}
	return fmt.Sprintf("%s keeps its status here. If a program in members is to work on it, set the label %s=%s", keeper, v1alpha1.HomeLabel, v1alpha1.HomeMembers)
}

// Snapshot returns the scheduler's input for decisions about this state.
func (s *State) Snapshot() *Snapshot {
	facts := make([]placement.Cluster, 0, len(s.Clusters))
	for _, c := range s.Clusters {
		// The status counts as confirmed: no leader is involved.
		f := placement.FromCluster(c, time.Time{})
		for i := range f.Taints {
			if f.Taints[i].TimeAdded == nil { // toleration times of new taints start now
				f.Taints[i].TimeAdded = &metav1.Time{Time: s.At}
			}
		}
		facts = append(facts, f)
	}
	snap := &Snapshot{Fleet: placement.NewFleet(facts), Policies: placement.NewPolicies(s.Placements, s.ClusterPlacements, nil),
		Allocations: placement.NewAllocations(), Rooms: placement.NewRooms(), Pending: s.pendingIn(), Tenants: newStateTenants(s), Now: s.At, Peers: s.peers, AllPeers: s.allPeers, Rights: s.rights, Types: s.types,
		Namespace: func(name string) map[string]string { return s.Namespaces[name] }, Quotas: s.quotas(), Follows: s.following,
		Volumes: volumes.Compile(s.VolumePolicies), Claim: s.claimOf}
	for i := range facts {
		snap.Rooms.Report(facts[i].Name, facts[i].Nodes, s.At)
		snap.Rooms.ReportQuotas(facts[i].Name, facts[i].Quotas)
	}
	snap.Obstacles, snap.Groups, snap.Missing = s.obstacles(snap), newStateGroups(s), s.missingIn(s.makers())
	snap.Autoscaler = func(k interpret.KindInfo, obj *unstructured.Unstructured) *unstructured.Unstructured {
		return s.autoscalers[KeyOf(k.GroupKind(), obj.GetNamespace(), obj.GetName())]
	}
	for _, p := range s.Placed {
		if b := s.bindings[p.Key()]; b != nil {
			o := objectOf(p.Kind, p.Object)
			snap.Allocations.Set(o, previous(b))
			grantRecent(snap.Rooms, &o, b, s.At)
			if b.Spec.Preemption != nil {
				promise(snap.Rooms, &o, b.Spec.Preemption, previous(b))
			}
		}
	}
	return snap
}

func (s *State) obstacles(snap *Snapshot) func(interpret.KindInfo, *unstructured.Unstructured, *v1alpha1.ResourceBinding) map[string]placement.Obstacle {
	return func(k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) map[string]placement.Obstacle {
		if fleet.Native(k.GroupKind()) {
			return gaps(s.Fields, snap.Fleet, obj, b)
		}
		out := map[string]placement.Obstacle{}
		for _, c := range s.Clusters {
			if i := s.imports[v1alpha1.ImportName(k.GVR(), c.Name)]; i == nil {
				out[c.Name] = notServed("the cluster does not serve " + k.GroupKind().String())
			} else if takes, why := fleet.ImportServes(i); !takes {
				out[c.Name] = notServed(why)
			}
		}
		if definition := s.bindings[KeyOf(crdKind(), "", definitionOf(k).Name)]; definition != nil && !snap.Choose(k, obj).Explicit {
			for _, share := range definition.Spec.Clusters {
				if _, obstructed := out[share.Name]; share.Reason == ReasonKeptData && !obstructed {
					out[share.Name] = idleType(isRunning(b, share.Name))
				}
			}
		}
		return out
	}
}

// missingIn returns what finds the objects that pods read and that are made in clusters. A State has no Secrets:
// one without a binding may exist and have had no reader yet, so others do not count as missing.
func (s *State) missingIn(makers map[string][]maker) func(interpret.KindInfo, *unstructured.Unstructured) []missing {
	return func(k interpret.KindInfo, obj *unstructured.Unstructured) (out []missing) {
		in := makers[obj.GetNamespace()]
		if len(in) == 0 {
			return nil
		}
		for _, ref := range k.Reads(obj) {
			if s.bindings[KeyOf(ref.GroupKind, ref.Namespace, ref.Name)] != nil {
				continue
			}
			if m := whoMakes(ref, in); m.maker != "" {
				out = append(out, m)
			}
		}
		return out
	}
}

// makers returns the custom resources that clusters have, by namespace.
func (s *State) makers() map[string][]maker {
	out := map[string][]maker{}
	for _, p := range s.Placed {
		if fleet.Native(p.Kind.GroupKind()) {
			continue
		}
		if b := s.bindings[p.Key()]; b != nil && b.DeletionTimestamp == nil {
			namespace := p.Object.GetNamespace()
			out[namespace] = append(out[namespace], maker{p.Object, clusterNames(b.Spec.Clusters)})
		}
	}
	for _, in := range out {
		slices.SortFunc(in, func(a, b maker) int { return compareNames(a.object, b.object) })
	}
	return out
}

func (s *State) peers(namespace string) iter.Seq[Peer] {
	return func(yield func(Peer) bool) {
		for p := range s.allPeers() {
			if p.Namespace == namespace && !yield(p) {
				return
			}
		}
	}
}

func (s *State) allPeers() iter.Seq[Peer] {
	return func(yield func(Peer) bool) {
		for _, p := range s.Placed {
			b := s.bindings[p.Key()]
			if b == nil {
				continue
			}
			peer := Peer{Key: p.Key(), Namespace: p.Object.GetNamespace(), Labels: p.Object.GetLabels()}
			for _, c := range b.Decided() {
				peer.Clusters = append(peer.Clusters, c.Name)
			}
			if !yield(peer) {
				return
			}
		}
	}
}
