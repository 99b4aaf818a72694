package etcd

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// authService reports that authentication by name and password is off and has no users, and
// refuses to change that.
type authService struct {
	pb.UnimplementedAuthServer
	f *adapter
}

// header returns the header of an answer without other contents.
func (a *authService) header(ctx context.Context) (*pb.ResponseHeader, error) {
	rev, err := a.f.headRevision(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	return a.f.header(rev), nil
}

func (a *authService) AuthStatus(ctx context.Context, _ *pb.AuthStatusRequest) (*pb.AuthStatusResponse, error) {
	h, err := a.header(ctx)
	return &pb.AuthStatusResponse{Header: h}, err
}

// AuthDisable has nothing to do.
func (a *authService) AuthDisable(ctx context.Context, _ *pb.AuthDisableRequest) (*pb.AuthDisableResponse, error) {
	h, err := a.header(ctx)
	return &pb.AuthDisableResponse{Header: h}, err
}

func (a *authService) UserList(ctx context.Context, _ *pb.AuthUserListRequest) (*pb.AuthUserListResponse, error) {
	h, err := a.header(ctx)
	return &pb.AuthUserListResponse{Header: h}, err
}

func (a *authService) RoleList(ctx context.Context, _ *pb.AuthRoleListRequest) (*pb.AuthRoleListResponse, error) {
	h, err := a.header(ctx)
	return &pb.AuthRoleListResponse{Header: h}, err
}

// Authenticate returns etcd's error for disabled authentication: clients that have a name
// and a password then continue without.
func (a *authService) Authenticate(context.Context, *pb.AuthenticateRequest) (*pb.AuthenticateResponse, error) {
	return nil, rpctypes.ErrGRPCAuthNotEnabled
}

// Queries for a user or role, none of which exists.

func (a *authService) UserGet(context.Context, *pb.AuthUserGetRequest) (*pb.AuthUserGetResponse, error) {
	return nil, rpctypes.ErrGRPCUserNotFound
}

func (a *authService) UserDelete(context.Context, *pb.AuthUserDeleteRequest) (*pb.AuthUserDeleteResponse, error) {
	return nil, rpctypes.ErrGRPCUserNotFound
}

func (a *authService) UserChangePassword(context.Context, *pb.AuthUserChangePasswordRequest) (*pb.AuthUserChangePasswordResponse, error) {
	return nil, rpctypes.ErrGRPCUserNotFound
}

func (a *authService) UserGrantRole(context.Context, *pb.AuthUserGrantRoleRequest) (*pb.AuthUserGrantRoleResponse, error) {
	return nil, rpctypes.ErrGRPCUserNotFound
}

func (a *authService) UserRevokeRole(context.Context, *pb.AuthUserRevokeRoleRequest) (*pb.AuthUserRevokeRoleResponse, error) {
	return nil, rpctypes.ErrGRPCUserNotFound
}

func (a *authService) RoleGet(context.Context, *pb.AuthRoleGetRequest) (*pb.AuthRoleGetResponse, error) {
	return nil, rpctypes.ErrGRPCRoleNotFound
}

func (a *authService) RoleDelete(context.Context, *pb.AuthRoleDeleteRequest) (*pb.AuthRoleDeleteResponse, error) {
	return nil, rpctypes.ErrGRPCRoleNotFound
}

func (a *authService) RoleGrantPermission(context.Context, *pb.AuthRoleGrantPermissionRequest) (*pb.AuthRoleGrantPermissionResponse, error) {
	return nil, rpctypes.ErrGRPCRoleNotFound
}

func (a *authService) RoleRevokePermission(context.Context, *pb.AuthRoleRevokePermissionRequest) (*pb.AuthRoleRevokePermissionResponse, error) {
	return nil, rpctypes.ErrGRPCRoleNotFound
}

// Calls that would create a user or role, or enable authentication.

func (a *authService) AuthEnable(context.Context, *pb.AuthEnableRequest) (*pb.AuthEnableResponse, error) {
	return nil, refuse("authentication by name and password", insteadOfAuth)
}

func (a *authService) UserAdd(context.Context, *pb.AuthUserAddRequest) (*pb.AuthUserAddResponse, error) {
	return nil, refuse("adding a user", insteadOfAuth)
}

func (a *authService) RoleAdd(context.Context, *pb.AuthRoleAddRequest) (*pb.AuthRoleAddResponse, error) {
	return nil, refuse("adding a role", insteadOfAuth)
}
