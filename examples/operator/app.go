package main

import (
	"encoding/json"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var appVersion = schema.GroupVersion{Group: "apps.example.com", Version: "v1"}

// App is an application that runs in many clusters. It is stored in Atoll, and every
// cluster's own API server serves it. Its schema is in config/atoll.yaml.
type App struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec struct {
		Image       string           `json:"image,omitempty"`
		Replicas    int32            `json:"replicas,omitempty"`    // in all clusters together
		Assignments map[string]int32 `json:"assignments,omitempty"` // by cluster; written by the leader
	} `json:"spec,omitzero"`
	Status struct {
		Clusters map[string]ClusterStatus `json:"clusters,omitempty"` // each written by its cluster
	} `json:"status,omitzero"`
}

// ClusterStatus is the status of an App in one cluster.
type ClusterStatus struct {
	Ready   int32  `json:"ready"`
	Message string `json:"message,omitempty"`
}

// AppList is a list of Apps.
type AppList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []App `json:"items"`
}

func (a *App) DeepCopyObject() runtime.Object {
	out := *a
	out.ObjectMeta = *a.ObjectMeta.DeepCopy()
	out.Spec.Assignments = maps.Clone(a.Spec.Assignments)
	out.Status.Clusters = maps.Clone(a.Status.Clusters)
	return &out
}

func (l *AppList) DeepCopyObject() runtime.Object {
	out := &AppList{l.TypeMeta, *l.ListMeta.DeepCopy(), nil}
	for _, app := range l.Items {
		out.Items = append(out.Items, *app.DeepCopyObject().(*App))
	}
	return out
}

// part returns an App with only its identity, to which one field manager adds the
// fields that it applies. The UID prevents that the apply recreates a deleted App.
func (a *App) part() *App {
	id := metav1.ObjectMeta{Namespace: a.Namespace, Name: a.Name, UID: a.UID}
	return &App{TypeMeta: metav1.TypeMeta{APIVersion: appVersion.String(), Kind: "App"}, ObjectMeta: id}
}

// apply returns the server-side apply patch of a part.
func apply(part *App) client.Patch {
	raw, _ := json.Marshal(part) // cannot fail: plain data
	return client.RawPatch(types.ApplyPatchType, raw)
}
