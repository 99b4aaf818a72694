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

// App is an application that runs in many clusters. It lives in Atoll, and every
// cluster's own API server serves it. Its schema is in config/atoll.yaml.
type App struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec struct {
		Image       string           `json:"image,omitempty"`
		Replicas    int32            `json:"replicas,omitempty"`    // of all clusters together
		Assignments map[string]int32 `json:"assignments,omitempty"` // of each, by the leader
	} `json:"spec,omitzero"`
	Status struct {
		Clusters map[string]ClusterStatus `json:"clusters,omitempty"` // each by itself
	} `json:"status,omitzero"`
}

// ClusterStatus is how an App fares in one cluster.
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

// part is an App with nothing in it yet, to hold what one writer applies. With
// the UID, an App that was deleted meanwhile is not made anew.
func (a *App) part() *App {
	id := metav1.ObjectMeta{Namespace: a.Namespace, Name: a.Name, UID: a.UID}
	return &App{TypeMeta: metav1.TypeMeta{APIVersion: appVersion.String(), Kind: "App"}, ObjectMeta: id}
}

// apply is the server-side apply of a part.
func apply(part *App) client.Patch {
	raw, _ := json.Marshal(part) // plain data
	return client.RawPatch(types.ApplyPatchType, raw)
}
