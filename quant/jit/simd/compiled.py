"""What vectors.py says, told to numba: a vector is an LLVM value of WIDTH floats, so it stays in a register.

Importing this module is what teaches numba; FUNCTIONS are what compiled loops find under the names of
vectors.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.extending import intrinsic, overload, register_model

from satchel.quant.jit.simd.vectors import WIDTH

FLOAT, WORD = ir.FloatType(), ir.IntType(32)
FLOATS, BITS, BYTES = (ir.VectorType(t, WIDTH) for t in (FLOAT, ir.IntType(1), ir.IntType(8)))
Emit = Callable[..., Any]  # (builder, LLVM values of the arguments) -> LLVM value
Typed = tuple[types.Type, Emit, tuple[types.Type, ...]]


class VectorType(types.Type):
    """The type of a vector, or of a mask."""

    def __init__(self, name: str) -> None:
        super().__init__(name=f"{name}{WIDTH}")


class VectorModel(models.PrimitiveModel):
    """How numba keeps one."""

    def __init__(self, manager: Any, kind: VectorType) -> None:
        super().__init__(manager, kind, FLOATS if kind == VECTOR else BITS)  # type: ignore[no-untyped-call]


register_model(VectorType)(VectorModel)
VECTOR, MASK = VectorType("vector"), VectorType("mask")


def _code(result: types.Type, emit: Emit) -> Callable[..., Any]:
    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        found = emit(builder, *values)
        return context.get_dummy_value() if result == types.none else found

    return code


def _unary(result: types.Type, emit: Emit) -> Any:
    """For any argument; the code says what it takes."""
    return intrinsic(lambda typingctx, a: (result(a), _code(result, emit)))


def _binary(result: types.Type, emit: Emit) -> Any:
    return intrinsic(lambda typingctx, a, b: (result(a, b), _code(result, emit)))


def _ternary(result: types.Type, emit: Emit) -> Any:
    return intrinsic(lambda typingctx, a, b, c: (result(a, b, c), _code(result, emit)))


def _splat(builder: Any, x: Any) -> Any:
    one = builder.insert_element(ir.Constant(FLOATS, ir.Undefined), x, WORD(0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(WORD, WIDTH), [0] * WIDTH))


def _place(builder: Any, data: Any, at: Any, lanes: ir.VectorType) -> Any:
    return builder.bitcast(builder.gep(data, [at]), lanes.as_pointer())


def _fetch(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, values[0])
    return builder.load(_place(builder, array.data, values[1], FLOATS), align=4)


def _put(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, values[0])
    builder.store(values[2], _place(builder, array.data, values[1], FLOATS), align=4)
    return context.get_dummy_value()


def _turn(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    to, to_at, to_stride, a, at, stride = values
    target = context.make_array(signature.args[0])(context, builder, to).data
    source = context.make_array(signature.args[3])(context, builder, a).data
    rows = []
    for i in range(WIDTH):
        place = builder.add(at, builder.mul(stride, stride.type(i)))
        rows.append(builder.load(_place(builder, source, place, FLOATS), align=4))
    for i, row in enumerate(_turned(builder, rows)):
        place = builder.add(to_at, builder.mul(to_stride, to_stride.type(i)))
        builder.store(row, _place(builder, target, place, FLOATS), align=4)
    return context.get_dummy_value()


def _turned(builder: Any, rows: list[Any]) -> list[Any]:
    """Swaps squares of half the size across the diagonal, then within each, and so on."""
    side = WIDTH // 2
    while side:
        low = [i + (WIDTH - side if i & side else 0) for i in range(WIDTH)]
        masks = [ir.Constant(ir.VectorType(WORD, WIDTH), [i + at for i in low]) for at in (0, side)]
        for i in range(WIDTH):
            if not i & side:
                pair = rows[i], rows[i + side]
                rows[i], rows[i + side] = (builder.shuffle_vector(*pair, mask) for mask in masks)
        side //= 2
    return rows


def _put_bytes(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, values[0])
    whole = builder.fptosi(values[2], ir.VectorType(WORD, WIDTH))
    builder.store(builder.trunc(whole, BYTES), _place(builder, array.data, values[1], BYTES), align=1)
    return context.get_dummy_value()


def _called(name: str, count: int) -> Emit:
    """One of LLVM's own functions."""
    find: Any = cgutils.get_or_insert_function

    def emit(builder: Any, *values: Any) -> Any:
        kind = ir.FunctionType(FLOATS, [FLOATS] * count)
        function = find(builder.module, kind, f"llvm.{name}.v{WIDTH}f32")
        return builder.call(function, values)

    return emit


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _smaller(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered("<", a, b), a, b)


def _if_any(typingctx: Any, share: types.Type, w: types.Type) -> Any:
    kept = types.none if share == types.none else w

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        if kept == types.none:
            return context.get_dummy_value()
        context.nrt.incref(builder, w, values[1])
        return values[1]

    return kept(share, w), code


FUNCTIONS = {
    "if_any": intrinsic(_if_any),
    "splat": intrinsic(lambda typingctx, x: (VECTOR(types.float32), _code(VECTOR, _splat))),
    "fetch": intrinsic(lambda typingctx, a, at: (VECTOR(a, types.intp), _fetch)),
    "put": intrinsic(lambda typingctx, a, at, x: (types.none(a, types.intp, VECTOR), _put)),
    "turn": intrinsic(
        lambda typingctx, to, to_at, to_stride, a, at, stride: (
            types.none(to, types.intp, types.intp, a, types.intp, types.intp),
            _turn,
        )
    ),
    "put_bytes": intrinsic(lambda typingctx, a, at, x: (types.none(a, types.intp, VECTOR), _put_bytes)),
    "nearest": _unary(VECTOR, _called("rint", 1)),
    "size_of": _unary(VECTOR, _called("fabs", 1)),
    "at_least": _binary(VECTOR, _larger),
    "at_most": _binary(VECTOR, _smaller),
    "pick": _ternary(VECTOR, lambda builder, mask, yes, no: builder.select(mask, yes, no)),
    "fused": _ternary(VECTOR, _called("fma", 3)),
}


def _operator(function: Any, result: types.Type, emit: Emit, both: types.Type = VECTOR) -> None:
    call = _binary(result, emit)

    # numba compares the names of the arguments, and would the types if these had any.
    overload(function)(lambda a, b: (lambda a, b: call(a, b)) if a == both and b == both else None)


for _name in ("add", "sub", "mul", "truediv"):
    _llvm = {"truediv": "fdiv"}.get(_name, f"f{_name}")
    _operator(
        getattr(operator, _name), VECTOR, lambda builder, a, b, llvm=_llvm: getattr(builder, llvm)(a, b)
    )
for _sign, _compare in (("<", "lt"), ("<=", "le"), (">", "gt"), (">=", "ge"), ("==", "eq")):
    _operator(getattr(operator, _compare), MASK, lambda b, x, y, sign=_sign: b.fcmp_ordered(sign, x, y))
_operator(operator.ne, MASK, lambda builder, a, b: builder.fcmp_unordered("!=", a, b))
_operator(operator.and_, MASK, lambda builder, a, b: builder.and_(a, b), MASK)
_operator(operator.or_, MASK, lambda builder, a, b: builder.or_(a, b), MASK)
