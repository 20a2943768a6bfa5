# Made by `tidewire codegen http://127.0.0.1:8000` from what tidewire_server/0.1.0 says of itself (tidewire/1).
# Do not edit it: make it again.

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal, overload

from pydantic import BaseModel, ConfigDict, TypeAdapter
from tidewire import AsyncBatchJob, AsyncClient, AsyncJob, BatchJob, Client, Job
from tidewire.jobs.map_iterator import AsyncMap
from typing_extensions import TypeAliasType


class CountInput(BaseModel):
    model_config = ConfigDict(
        extra='forbid',
        populate_by_name=True,
    )
    n: int = 5


CountValue = TypeAliasType("CountValue", int)


class DoubleInput(BaseModel):
    model_config = ConfigDict(
        extra='forbid',
        populate_by_name=True,
    )
    x: int


DoubleValue = TypeAliasType("DoubleValue", int)


class ForeverInput(BaseModel):
    model_config = ConfigDict(
        extra='forbid',
        populate_by_name=True,
    )


ForeverValue = TypeAliasType("ForeverValue", str)


class GrowInput(BaseModel):
    model_config = ConfigDict(
        extra='forbid',
        populate_by_name=True,
    )
    steps: int = 8


class GrowValue(BaseModel):
    model_config = ConfigDict(
        extra='allow',
        populate_by_name=True,
    )


class HesitateInput(BaseModel):
    model_config = ConfigDict(
        extra='forbid',
        populate_by_name=True,
    )
    words: int = 6


HesitateValue = TypeAliasType("HesitateValue", str)


class MostRunsOfAnInputInput(BaseModel):
    model_config = ConfigDict(
        extra='forbid',
        populate_by_name=True,
    )


MostRunsOfAnInputValue = TypeAliasType("MostRunsOfAnInputValue", list[int])


class PointInput(BaseModel):
    model_config = ConfigDict(
        extra='forbid',
        populate_by_name=True,
    )
    x: float
    fail: bool = False


class PointValue(BaseModel):
    model_config = ConfigDict(
        populate_by_name=True,
    )
    x: float
    label: str = ''


class StartsSoFarInput(BaseModel):
    model_config = ConfigDict(
        extra='forbid',
        populate_by_name=True,
    )


StartsSoFarValue = TypeAliasType("StartsSoFarValue", int)


class TalkInput(BaseModel):
    model_config = ConfigDict(
        extra='forbid',
        populate_by_name=True,
    )
    words: int = 12
    slow: bool = False


TalkValue = TypeAliasType("TalkValue", str)


_INPUTS: Final[dict[str, TypeAdapter[Any]]] = {
    'count': TypeAdapter(CountInput),
    'double': TypeAdapter(DoubleInput),
    'forever': TypeAdapter(ForeverInput),
    'grow': TypeAdapter(GrowInput),
    'hesitate': TypeAdapter(HesitateInput),
    'most_runs_of_an_input': TypeAdapter(MostRunsOfAnInputInput),
    'point': TypeAdapter(PointInput),
    'starts_so_far': TypeAdapter(StartsSoFarInput),
    'talk': TypeAdapter(TalkInput),
}

_VALUES: Final[dict[str, TypeAdapter[Any]]] = {
    'count': TypeAdapter(CountValue),
    'double': TypeAdapter(DoubleValue),
    'forever': TypeAdapter(ForeverValue),
    'grow': TypeAdapter(GrowValue),
    'hesitate': TypeAdapter(HesitateValue),
    'most_runs_of_an_input': TypeAdapter(MostRunsOfAnInputValue),
    'point': TypeAdapter(PointValue),
    'starts_so_far': TypeAdapter(StartsSoFarValue),
    'talk': TypeAdapter(TalkValue),
}


def _plain(endpoint: str, value: Any) -> Any:
    """An input as JSON, without what was not set."""
    return _INPUTS[endpoint].dump_python(value, mode="json", by_alias=True, exclude_unset=True)


class TypedClient:
    """The endpoints of this server by their types, over a `Client`."""

    def __init__(self, client: Client) -> None:
        self.client = client

    @overload
    def submit(self, endpoint: Literal['count'], input: CountInput, /) -> Job[CountValue]: ...

    @overload
    def submit(self, endpoint: Literal['double'], input: DoubleInput, /) -> Job[DoubleValue]: ...

    @overload
    def submit(self, endpoint: Literal['forever'], input: ForeverInput, /) -> Job[ForeverValue]: ...

    @overload
    def submit(self, endpoint: Literal['grow'], input: GrowInput, /) -> Job[GrowValue]: ...

    @overload
    def submit(self, endpoint: Literal['hesitate'], input: HesitateInput, /) -> Job[HesitateValue]: ...

    @overload
    def submit(self, endpoint: Literal['most_runs_of_an_input'], input: MostRunsOfAnInputInput, /) -> Job[MostRunsOfAnInputValue]: ...

    @overload
    def submit(self, endpoint: Literal['point'], input: PointInput, /) -> Job[PointValue]: ...

    @overload
    def submit(self, endpoint: Literal['starts_so_far'], input: StartsSoFarInput, /) -> Job[StartsSoFarValue]: ...

    @overload
    def submit(self, endpoint: Literal['talk'], input: TalkInput, /) -> Job[TalkValue]: ...

    def submit(self, endpoint: str, input: Any, /) -> Any:
        return self.client.submit(endpoint, _plain(endpoint, input), returns=_VALUES[endpoint])

    @overload
    def run(self, endpoint: Literal['count'], input: CountInput, /) -> CountValue: ...

    @overload
    def run(self, endpoint: Literal['double'], input: DoubleInput, /) -> DoubleValue: ...

    @overload
    def run(self, endpoint: Literal['forever'], input: ForeverInput, /) -> ForeverValue: ...

    @overload
    def run(self, endpoint: Literal['grow'], input: GrowInput, /) -> GrowValue: ...

    @overload
    def run(self, endpoint: Literal['hesitate'], input: HesitateInput, /) -> HesitateValue: ...

    @overload
    def run(self, endpoint: Literal['most_runs_of_an_input'], input: MostRunsOfAnInputInput, /) -> MostRunsOfAnInputValue: ...

    @overload
    def run(self, endpoint: Literal['point'], input: PointInput, /) -> PointValue: ...

    @overload
    def run(self, endpoint: Literal['starts_so_far'], input: StartsSoFarInput, /) -> StartsSoFarValue: ...

    @overload
    def run(self, endpoint: Literal['talk'], input: TalkInput, /) -> TalkValue: ...

    def run(self, endpoint: str, input: Any, /) -> Any:
        return self.client.run(endpoint, _plain(endpoint, input), returns=_VALUES[endpoint])

    @overload
    def submit_batch(self, endpoint: Literal['count'], inputs: Iterable[CountInput], /) -> BatchJob[CountValue]: ...

    @overload
    def submit_batch(self, endpoint: Literal['double'], inputs: Iterable[DoubleInput], /) -> BatchJob[DoubleValue]: ...

    @overload
    def submit_batch(self, endpoint: Literal['forever'], inputs: Iterable[ForeverInput], /) -> BatchJob[ForeverValue]: ...

    @overload
    def submit_batch(self, endpoint: Literal['grow'], inputs: Iterable[GrowInput], /) -> BatchJob[GrowValue]: ...

    @overload
    def submit_batch(self, endpoint: Literal['hesitate'], inputs: Iterable[HesitateInput], /) -> BatchJob[HesitateValue]: ...

    @overload
    def submit_batch(self, endpoint: Literal['most_runs_of_an_input'], inputs: Iterable[MostRunsOfAnInputInput], /) -> BatchJob[MostRunsOfAnInputValue]: ...

    @overload
    def submit_batch(self, endpoint: Literal['point'], inputs: Iterable[PointInput], /) -> BatchJob[PointValue]: ...

    @overload
    def submit_batch(self, endpoint: Literal['starts_so_far'], inputs: Iterable[StartsSoFarInput], /) -> BatchJob[StartsSoFarValue]: ...

    @overload
    def submit_batch(self, endpoint: Literal['talk'], inputs: Iterable[TalkInput], /) -> BatchJob[TalkValue]: ...

    def submit_batch(self, endpoint: str, inputs: Any, /) -> Any:
        return self.client.submit_batch(endpoint, (_plain(endpoint, each) for each in inputs), returns=_VALUES[endpoint])

    @overload
    def map(self, endpoint: Literal['count'], inputs: Iterable[CountInput], /) -> Iterator[CountValue]: ...

    @overload
    def map(self, endpoint: Literal['double'], inputs: Iterable[DoubleInput], /) -> Iterator[DoubleValue]: ...

    @overload
    def map(self, endpoint: Literal['forever'], inputs: Iterable[ForeverInput], /) -> Iterator[ForeverValue]: ...

    @overload
    def map(self, endpoint: Literal['grow'], inputs: Iterable[GrowInput], /) -> Iterator[GrowValue]: ...

    @overload
    def map(self, endpoint: Literal['hesitate'], inputs: Iterable[HesitateInput], /) -> Iterator[HesitateValue]: ...

    @overload
    def map(self, endpoint: Literal['most_runs_of_an_input'], inputs: Iterable[MostRunsOfAnInputInput], /) -> Iterator[MostRunsOfAnInputValue]: ...

    @overload
    def map(self, endpoint: Literal['point'], inputs: Iterable[PointInput], /) -> Iterator[PointValue]: ...

    @overload
    def map(self, endpoint: Literal['starts_so_far'], inputs: Iterable[StartsSoFarInput], /) -> Iterator[StartsSoFarValue]: ...

    @overload
    def map(self, endpoint: Literal['talk'], inputs: Iterable[TalkInput], /) -> Iterator[TalkValue]: ...

    def map(self, endpoint: str, inputs: Any, /) -> Any:
        return self.client.map(endpoint, (_plain(endpoint, each) for each in inputs), returns=_VALUES[endpoint])


class TypedAsyncClient:
    """The endpoints of this server by their types, over a `AsyncClient`."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    @overload
    async def submit(self, endpoint: Literal['count'], input: CountInput, /) -> AsyncJob[CountValue]: ...

    @overload
    async def submit(self, endpoint: Literal['double'], input: DoubleInput, /) -> AsyncJob[DoubleValue]: ...

    @overload
    async def submit(self, endpoint: Literal['forever'], input: ForeverInput, /) -> AsyncJob[ForeverValue]: ...

    @overload
    async def submit(self, endpoint: Literal['grow'], input: GrowInput, /) -> AsyncJob[GrowValue]: ...

    @overload
    async def submit(self, endpoint: Literal['hesitate'], input: HesitateInput, /) -> AsyncJob[HesitateValue]: ...

    @overload
    async def submit(self, endpoint: Literal['most_runs_of_an_input'], input: MostRunsOfAnInputInput, /) -> AsyncJob[MostRunsOfAnInputValue]: ...

    @overload
    async def submit(self, endpoint: Literal['point'], input: PointInput, /) -> AsyncJob[PointValue]: ...

    @overload
    async def submit(self, endpoint: Literal['starts_so_far'], input: StartsSoFarInput, /) -> AsyncJob[StartsSoFarValue]: ...

    @overload
    async def submit(self, endpoint: Literal['talk'], input: TalkInput, /) -> AsyncJob[TalkValue]: ...

    async def submit(self, endpoint: str, input: Any, /) -> Any:
        return await self.client.submit(endpoint, _plain(endpoint, input), returns=_VALUES[endpoint])

    @overload
    async def run(self, endpoint: Literal['count'], input: CountInput, /) -> CountValue: ...

    @overload
    async def run(self, endpoint: Literal['double'], input: DoubleInput, /) -> DoubleValue: ...

    @overload
    async def run(self, endpoint: Literal['forever'], input: ForeverInput, /) -> ForeverValue: ...

    @overload
    async def run(self, endpoint: Literal['grow'], input: GrowInput, /) -> GrowValue: ...

    @overload
    async def run(self, endpoint: Literal['hesitate'], input: HesitateInput, /) -> HesitateValue: ...

    @overload
    async def run(self, endpoint: Literal['most_runs_of_an_input'], input: MostRunsOfAnInputInput, /) -> MostRunsOfAnInputValue: ...

    @overload
    async def run(self, endpoint: Literal['point'], input: PointInput, /) -> PointValue: ...

    @overload
    async def run(self, endpoint: Literal['starts_so_far'], input: StartsSoFarInput, /) -> StartsSoFarValue: ...

    @overload
    async def run(self, endpoint: Literal['talk'], input: TalkInput, /) -> TalkValue: ...

    async def run(self, endpoint: str, input: Any, /) -> Any:
        return await self.client.run(endpoint, _plain(endpoint, input), returns=_VALUES[endpoint])

    @overload
    async def submit_batch(self, endpoint: Literal['count'], inputs: Iterable[CountInput], /) -> AsyncBatchJob[CountValue]: ...

    @overload
    async def submit_batch(self, endpoint: Literal['double'], inputs: Iterable[DoubleInput], /) -> AsyncBatchJob[DoubleValue]: ...

    @overload
    async def submit_batch(self, endpoint: Literal['forever'], inputs: Iterable[ForeverInput], /) -> AsyncBatchJob[ForeverValue]: ...

    @overload
    async def submit_batch(self, endpoint: Literal['grow'], inputs: Iterable[GrowInput], /) -> AsyncBatchJob[GrowValue]: ...

    @overload
    async def submit_batch(self, endpoint: Literal['hesitate'], inputs: Iterable[HesitateInput], /) -> AsyncBatchJob[HesitateValue]: ...

    @overload
    async def submit_batch(self, endpoint: Literal['most_runs_of_an_input'], inputs: Iterable[MostRunsOfAnInputInput], /) -> AsyncBatchJob[MostRunsOfAnInputValue]: ...

    @overload
    async def submit_batch(self, endpoint: Literal['point'], inputs: Iterable[PointInput], /) -> AsyncBatchJob[PointValue]: ...

    @overload
    async def submit_batch(self, endpoint: Literal['starts_so_far'], inputs: Iterable[StartsSoFarInput], /) -> AsyncBatchJob[StartsSoFarValue]: ...

    @overload
    async def submit_batch(self, endpoint: Literal['talk'], inputs: Iterable[TalkInput], /) -> AsyncBatchJob[TalkValue]: ...

    async def submit_batch(self, endpoint: str, inputs: Any, /) -> Any:
        return await self.client.submit_batch(endpoint, (_plain(endpoint, each) for each in inputs), returns=_VALUES[endpoint])

    @overload
    def map(self, endpoint: Literal['count'], inputs: Iterable[CountInput], /) -> AsyncMap[CountValue]: ...

    @overload
    def map(self, endpoint: Literal['double'], inputs: Iterable[DoubleInput], /) -> AsyncMap[DoubleValue]: ...

    @overload
    def map(self, endpoint: Literal['forever'], inputs: Iterable[ForeverInput], /) -> AsyncMap[ForeverValue]: ...

    @overload
    def map(self, endpoint: Literal['grow'], inputs: Iterable[GrowInput], /) -> AsyncMap[GrowValue]: ...

    @overload
    def map(self, endpoint: Literal['hesitate'], inputs: Iterable[HesitateInput], /) -> AsyncMap[HesitateValue]: ...

    @overload
    def map(self, endpoint: Literal['most_runs_of_an_input'], inputs: Iterable[MostRunsOfAnInputInput], /) -> AsyncMap[MostRunsOfAnInputValue]: ...

    @overload
    def map(self, endpoint: Literal['point'], inputs: Iterable[PointInput], /) -> AsyncMap[PointValue]: ...

    @overload
    def map(self, endpoint: Literal['starts_so_far'], inputs: Iterable[StartsSoFarInput], /) -> AsyncMap[StartsSoFarValue]: ...

    @overload
    def map(self, endpoint: Literal['talk'], inputs: Iterable[TalkInput], /) -> AsyncMap[TalkValue]: ...

    def map(self, endpoint: str, inputs: Any, /) -> Any:
        return self.client.map(endpoint, (_plain(endpoint, each) for each in inputs), returns=_VALUES[endpoint])
